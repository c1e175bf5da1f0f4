import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * One pass of Kafka's cleaner over each partition directory of a job file, with one job for each line:
 * directory, first dirty offset, first uncleanable offset, now in ms, delete.retention.ms, segment.bytes.
 */
public class CleanWithKafka {
    /** The clock of one job: producers and delete horizons use the time of the history. */
    private record Fixed(long nowMs) implements Time {
        public long milliseconds() { return nowMs; }
        public long nanoseconds() { return nowMs * 1_000_000; }
        public void sleep(long ms) { }
        public void waitObject(Object monitor, Supplier<Boolean> condition, long deadlineMs) { }
    }

    public static void main(String[] words) throws Exception {
        for (String line : Files.readAllLines(Path.of(words[0]))) {
            String[] job = line.split("\t");
            clean(new File(job[0]), Long.parseLong(job[1]), Long.parseLong(job[2]), Long.parseLong(job[3]), job[4], job[5]);
        }
    }

    private static void clean(
        File directory, long firstDirty, long firstUncleanable, long nowMs, String retentionMs, String segmentBytes
    ) throws Exception {
        Time time = new Fixed(nowMs);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        LogConfig config = new LogConfig(Map.of(
            "cleanup.policy", "compact", "delete.retention.ms", retentionMs, "internal.segment.bytes", segmentBytes,
            "file.delete.delay.ms", "0"));
        UnifiedLog log = UnifiedLog.create(
            directory, config, 0, firstUncleanable, scheduler, new BrokerTopicStats(), time, Integer.MAX_VALUE,
            new ProducerStateManagerConfig(Integer.MAX_VALUE, false), Integer.MAX_VALUE, new LogDirFailureChannel(1),
            true, Optional.empty());
        Throttler unlimited = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", time);
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(1 << 20), 1 << 16, 1 << 20, 0.9, unlimited, time, partition -> { });
        long next = cleaner.doClean(new LogToClean(log, firstDirty, firstUncleanable, false), nowMs).getKey();
        System.out.println(directory + "\t" + next);
        log.close();
        scheduler.shutdown();
    }
}

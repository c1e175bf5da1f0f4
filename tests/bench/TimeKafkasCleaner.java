import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Map;
import java.util.Optional;

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
 * Times Kafka's cleaner without the open and close of the log. An input line has the partition directory, the end offset
 * of the cleaning, now in ms and segment.bytes. An output line has the nanoseconds of wall time and of processor time of
 * the cleaning thread.
 */
public class TimeKafkasCleaner {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    public static void main(String[] words) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        Throttler unlimited = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(128 << 20), 512 << 10, 1 << 20, 0.9, unlimited, Time.SYSTEM, partition -> { });
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            String[] job = line.split("\t");
            clean(cleaner, scheduler, new File(job[0]), Long.parseLong(job[1]), Long.parseLong(job[2]), job[3]);
        }
        scheduler.shutdown();
    }

    private static void clean(
        Cleaner cleaner, KafkaScheduler scheduler, File directory, long upto, long nowMs, String segmentBytes
    ) throws Exception {
        LogConfig config = new LogConfig(Map.of(
            "cleanup.policy", "compact", "segment.bytes", segmentBytes, "file.delete.delay.ms", "0"));
        UnifiedLog log = UnifiedLog.create(
            directory, config, 0, upto, scheduler, new BrokerTopicStats(), Time.SYSTEM, Integer.MAX_VALUE,
            new ProducerStateManagerConfig(Integer.MAX_VALUE, false), Integer.MAX_VALUE, new LogDirFailureChannel(1),
            true, Optional.empty());
        long wall = System.nanoTime();
        long processor = THREADS.getCurrentThreadCpuTime();
        cleaner.doClean(new LogToClean(log, 0, upto, false), nowMs);
        wall = System.nanoTime() - wall;
        processor = THREADS.getCurrentThreadCpuTime() - processor;
        log.close();
        System.out.println("cleaned\t" + wall + "\t" + processor);
    }
}

import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams' word count: ADDRESS GUARANTEE INPUT OUTPUT DIRECTORY COUNT...
 *
 * One life of the application for each COUNT: it ends in an orderly way when all lives together have counted so many
 * words. Each life has a state directory of its own, so that it restores the counts from their changelog.
 */
public final class WordCount {
    private static final AtomicLong counted = new AtomicLong();

    public static void main(String[] words) throws Exception {
        for (int life = 0; life < words.length - 5; life++) {
            live(words, words[4] + "/" + life, Long.parseLong(words[5 + life]));
            System.out.println(counted.get());
        }
        System.exit(0);
    }

    private static void live(String[] words, String directory, long target) throws Exception {
        CountDownLatch ended = new CountDownLatch(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(words[2], Consumed.with(Serdes.ByteArray(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .peek((word, count) -> {
                if (counted.incrementAndGet() >= target) {
                    ended.countDown();
                }
            })
            .to(words[3], Produced.with(Serdes.String(), Serdes.Long()));
        Properties settings = new Properties();
        settings.putAll(Map.of(
            StreamsConfig.APPLICATION_ID_CONFIG, "words-" + words[1],
            StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, words[0],
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, words[1],
            StreamsConfig.STATE_DIR_CONFIG, directory,
            StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0,
            StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50,
            "auto.offset.reset", "earliest",
            "max.poll.records", 20,
            // A static member: the next life takes its place, without a wait for the end of its session.
            "group.instance.id", "one"));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            System.exit(1);
            return null;
        });
        streams.start();
        if (!ended.await(120, TimeUnit.SECONDS)) {
            System.err.println("counted " + counted.get() + " words, state " + streams.state());
            System.exit(1);
        }
        streams.close();
    }
}

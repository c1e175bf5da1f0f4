// A Kafka client by franz-go. Records are lines of JSON, with keys and values in base64.
//
//	consume ADDRESS TOPIC COUNT ISOLATION    prints the first COUNT records of all partitions
//	produce ADDRESS TOPIC CODEC              sends the records of stdin, and prints them with their offsets
//	group ADDRESS TOPIC COUNT GROUP          prints COUNT records that a member of a group reads, and commits them
//	transform ADDRESS TOPIC COUNT GROUP TO   copies COUNT records to a topic in transactions of the group's offsets
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

type line struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Ms        int64    `json:"ms"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(record *kgo.Record) {
	shown := line{record.Partition, record.Offset, record.Timestamp.UnixMilli(), record.Key, record.Value, []header{}}
	for _, each := range record.Headers {
		shown.Headers = append(shown.Headers, header{each.Key, each.Value})
	}
	check(json.NewEncoder(os.Stdout).Encode(shown))
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(os.Args[2]))...)
	check(err)
	return made
}

func count() int {
	found, err := strconv.Atoi(os.Args[4])
	check(err)
	return found
}

// poll calls `each` for the records of one poll, and returns their number.
func poll(fetches kgo.Fetches, each func(*kgo.Record)) int {
	for _, failed := range fetches.Errors() {
		check(failed.Err)
	}
	fetches.EachRecord(each)
	return fetches.NumRecords()
}

func consume(ctx context.Context) {
	options := []kgo.Opt{kgo.ConsumeTopics(os.Args[3]), kgo.FetchMaxWait(100 * time.Millisecond)}
	if os.Args[5] == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	consumer := client(options...)
	defer consumer.Close()
	for seen := 0; seen < count(); {
		seen += poll(consumer.PollFetches(ctx), show)
	}
}

func produce(ctx context.Context) {
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codecs[os.Args[4]]))
	defer producer.Close()
	lines := bufio.NewScanner(os.Stdin)
	var records []*kgo.Record
	for lines.Scan() {
		var sent line
		check(json.Unmarshal(lines.Bytes(), &sent))
		record := &kgo.Record{Topic: os.Args[3], Partition: sent.Partition, Key: sent.Key, Value: sent.Value}
		record.Timestamp = time.UnixMilli(sent.Ms)
		for _, each := range sent.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: each.Key, Value: each.Value})
		}
		records = append(records, record)
	}
	for _, result := range producer.ProduceSync(ctx, records...) {
		check(result.Err)
	}
	for _, record := range records {
		show(record)
	}
}

func group(ctx context.Context) {
	consumer := client(
		kgo.ConsumeTopics(os.Args[3]), kgo.ConsumerGroup(os.Args[5]), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer consumer.Close()
	for seen := 0; seen < count(); {
		seen += poll(consumer.PollRecords(ctx, count()-seen), show)
	}
	check(consumer.CommitUncommittedOffsets(ctx))
}

func transform(ctx context.Context) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Args[2]), kgo.TransactionalID("transformer"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeTopics(os.Args[3]), kgo.ConsumerGroup(os.Args[5]), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	check(err)
	defer session.Close()
	for seen := 0; seen < count(); {
		fetches := session.PollRecords(ctx, 50)
		check(session.Begin())
		seen += poll(fetches, func(record *kgo.Record) {
			copied := &kgo.Record{Topic: os.Args[6], Partition: record.Partition, Key: record.Key, Value: record.Value}
			session.Produce(ctx, copied, func(_ *kgo.Record, err error) { check(err) })
		})
		committed, err := session.End(ctx, kgo.TryCommit)
		check(err)
		if !committed {
			check(fmt.Errorf("a transaction was aborted"))
		}
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	verbs := map[string]func(context.Context){
		"consume": consume, "produce": produce, "group": group, "transform": transform}
	verbs[os.Args[1]](ctx)
}

//! A Kafka client by rskafka. A record is a line of fields with tabs between them: offset, time in ms, key, value, and
//! for each header its name and its value. Keys and values are hexadecimal, `-` for null.
//!
//!     consume ADDRESS TOPIC PARTITION COUNT    prints the first COUNT records
//!     produce ADDRESS TOPIC COUNT CODEC        creates the topic, and prints the records that it sent
use std::collections::BTreeMap;
use std::env::args;
use std::error::Error;

use chrono::DateTime;
use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};

type Done = Result<(), Box<dyn Error>>;

fn hex(data: &[u8]) -> String {
    data.iter().map(|each| format!("{each:02x}")).collect()
}

fn text(data: &Option<Vec<u8>>) -> String {
    data.as_ref().map_or("-".into(), |each| hex(each))
}

fn show(found: &RecordAndOffset) {
    let record = &found.record;
    let ms = record.timestamp.timestamp_millis();
    print!("{}\t{}\t{}\t{}", found.offset, ms, text(&record.key), text(&record.value));
    for (name, value) in &record.headers {
        print!("\t{}\t{}", name, hex(value));
    }
    println!();
}

async fn consume(client: &Client, words: &[String]) -> Done {
    let partition = client.partition_client(&words[3], words[4].parse()?, UnknownTopicHandling::Error).await?;
    let count: usize = words[5].parse()?;
    let mut offset = partition.get_offset(OffsetAt::Earliest).await?;
    let mut seen = 0;
    while seen < count {
        let (records, _) = partition.fetch_records(offset, 1..3000, 100).await?;
        for each in &records {
            show(each);
            offset = each.offset + 1;
        }
        seen += records.len();
    }
    Ok(())
}

async fn produce(client: &Client, words: &[String]) -> Done {
    client.controller_client()?.create_topic(&words[3], 1, 1, 30_000).await?;
    let partition = client.partition_client(&words[3], 0, UnknownTopicHandling::Retry).await?;
    let count: i64 = words[4].parse()?;
    let codec = match words[5].as_str() {
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        _ => Compression::NoCompression,
    };
    for first in (0..count).step_by(20) {
        let records: Vec<Record> = (first..count.min(first + 20))
            .map(|at| Record {
                key: if at % 5 == 0 { None } else { Some(format!("k{at}").into_bytes()) },
                value: if at % 7 == 0 { None } else { Some(format!("value {at}").into_bytes()) },
                headers: BTreeMap::from([("at".to_string(), at.to_string().into_bytes())]),
                timestamp: DateTime::from_timestamp_millis(1_790_000_000_000 + at).unwrap(),
            })
            .collect();
        let offsets = partition.produce(records.clone(), codec).await?;
        for (record, offset) in records.into_iter().zip(offsets) {
            show(&RecordAndOffset { record, offset });
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let words: Vec<String> = args().collect();
    let client = ClientBuilder::new(vec![words[2].clone()]).build().await?;
    match words[1].as_str() {
        "consume" => consume(&client, &words).await,
        _ => produce(&client, &words).await,
    }
}

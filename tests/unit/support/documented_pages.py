"""How a test runs each how-to page and runbook: its initial state, and the lines that are not run with the reason.

Each line of a page is run or listed here. A change of the lists also changes the number in `test_pages.py`.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from page_runner import ROOT, Page, Until

_INSTALLS = "installs packages; the environment of the tests has them"
_SYSTEM = "a tool of the system"
_BESIDE = "runs for ever; test_commands_beside_node.py runs the commands beside a node"
_CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.pem 2>/dev/null\n"
)
_SECURITY = (
    f"sed -n '/^```toml/,/^```/{{/^```/d;p}}' '{ROOT}/docs/how-to/secure-the-kafka-endpoint.md' > security.toml\n"
)
_USERS = "for user in alice loader; do echo a-long-password | tiered credentials users.json $user; done\n"
_ASKS = "asks for a password; the setup gives it by a pipe"
_DOCKER = "needs Docker and images of a registry"
_COMPOSED = ("up -d --build", "exec node tiered topic create orders -p 2", "exec node tiered status", "down")

_MAKE_NODE = """python -c '
import sys, time
from pathlib import Path
from local.format.record import Record
from tiered import Config, LogManager
home, url = Path(sys.argv[1]).absolute(), sys.argv[2:]
(home / "bucket").mkdir(parents=True)
place = url[0] if url else (home / "bucket").as_uri()
tiers = "dir = " + chr(34) + "data" + chr(34) + chr(10) + "[remote]" + chr(10) + "url = " + chr(34) + place + chr(34)
(home / "tiered.toml").write_text("[local]" + chr(10) + tiers + chr(10))
now = time.time_ns() // 1_000_000 - 60_000
small = {"segment.bytes": "2KiB", "append.batch.bytes": "256", "local.retention.ms": "1"}
small["remote.storage.enable"] = "true"
with LogManager.open(Config.load(str(home / "tiered.toml")), now_ms=now) as manager:
    for topic, more in (("orders", {}), ("prices", {"cleanup.policy": "compact"})):
        manager.topics.create(topic, 4 if topic == "orders" else 1, {**small, **more}, now_ms=now)
        for at in range(20):
            when = now - (19 - at) * 2 * 3_600_000
            records = [Record(b"k%d" % (n % 13), b"a value of some length, %d" % n, when) for n in range(25)]
            manager.append(topic, records, now_ms=now)
    while manager.tick(now):
        pass
' """
NODE = _MAKE_NODE + ".\n"
_ON_S3 = _MAKE_NODE + ". s3://logs/prod\n"
_ORPHAN = """object=$(find bucket -path '*orders*/0/data/*.log' | sort | head -1)
cp "$object" "$(echo $object | sed 's/-0*1-[0-9A-Z]*.log$/-0000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.log/')"
"""
_FLIP = """flip() { printf '\\001\\002' | dd of="$1" bs=1 seek=100 conv=notrunc status=none; }
for each in $(find bucket -path '*orders*/0/data/*.log' | sort | head -2); do chmod 600 $each; flip $each; done
"""
_BROKER = """python -c '
import time
from local.log import checkpoints
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition, new_topic_id
from local.format.record import Record
from local.settings import LogSettings
from local.storage.storage import DiskStorage
import os
from base64 import urlsafe_b64decode
from local.log.log import Log
root, disk, now = "/var/kafka/data", DiskStorage(), time.time_ns() // 1_000_000
os.makedirs(root)
directory, ends = LogDirectory(disk, root), {}
metadata = TopicPartition("__cluster_metadata", 0)
disk.make_directory(root + "/__cluster_metadata-0")
controller = Log.open(disk, root + "/__cluster_metadata-0", metadata, LogSettings(), now_ms=now)
for topic in ("orders", "payments", "users"):
    name, topic_id = TopicPartition(topic, 0), new_topic_id()
    directory.create(name, topic_id)
    told = bytes([1, 2, 0, len(topic) + 1]) + topic.encode() + urlsafe_b64decode(topic_id + "==") + bytes(1)
    controller.append([Record(None, told, now)], now_ms=now)
    log = directory.open_log(name, LogSettings(segment_bytes=2000, batch_bytes=300), now_ms=now)
    for at in range(50):
        log.append([Record(b"k%d" % (at % 7), b"value %d" % at, now)] * 5, now_ms=now)
    ends[name] = log.next_offset
checkpoints.write_offsets(disk, root + "/replication-offset-checkpoint", ends)
'
"""
_IAM_ROLE = """python -c '
import boto3
boto3.client("iam").create_role(RoleName="backfill", AssumeRolePolicyDocument="{}")
'
"""

_DAMAGE = """python -c '
import boto3
store = boto3.client("s3")
keys = [each["Key"] for each in store.list_objects_v2(Bucket="bucket")["Contents"]]
wrong = min(key for key in keys if key.endswith(".indexes") and "orders" in key)
body = bytearray(store.get_object(Bucket="bucket", Key=wrong)["Body"].read())
body[10] ^= 1
store.put_object(Bucket="bucket", Key=wrong, Body=bytes(body))
'
tiered -q scrub --deep --report scrub-20261120-101112.json || test $? = 4
"""
_THREE_DISKS = """mkdir -p /disk1 /disk2 /disk3
tiered -q init
sed -i 's|^dir = .*|dirs = ["/disk1/logs", "/disk2/logs", "/disk3/logs"]|' tiered.toml
tiered -q topic create orders -p 4
"""
_MORE = "seq 1 500 | tiered -q -C /srv/road append orders - --batch 20\n"
_DOCTOR = {"tiered doctor": (0, 3, 10), "tiered doctor --problems": (0, 3, 10)}  # result depends on this machine
HOW_TO = {
    "administer-a-running-node": Page(
        setup=_THREE_DISKS.replace("/disk2/logs", "/mnt/disk2/logs").replace(
            "topic create orders -p 4", "topic create latest -p 2"
        )
        + "tiered -q topic alter latest -X cleanup.policy=compact\n",
        not_run={
            "tiered run &": _BESIDE,
            "tail -F app.log | tiered append orders": _BESIDE,
        },
        before={"tiered delete-records orders/0 --before 1000 --yes": "seq 5000 | tiered -q append orders/0\n"},
    ),
    "secure-the-kafka-endpoint": Page(
        setup=_CERTIFICATE + _SECURITY + _USERS,
        not_run=dict.fromkeys((f"tiered credentials users.json {name}" for name in ("alice", "loader")), _ASKS),
        buckets=("my-bucket",),
        until={
            "tiered serve --remote s3://my-bucket/logs --host 0.0.0.0 --security security.toml": Until(
                "to Kafka clients", and_with="--port 0"
            )
        },
    ),
    "adopt-a-broker": Page(
        setup=_BROKER,
        buckets=("logs",),
        until={
            "tiered adopt /var/kafka/data orders payments --remote s3://logs/kafka --every 30": Until("0 B wait"),
            "tiered adopt /var/kafka/data --remote s3://logs/kafka --work /var/lib/tiered-adopt --metrics :9465": Until(
                url="http://127.0.0.1:9465/metrics"
            ),
        },
    ),
    "compacted-views": Page(
        setup=NODE,
        preamble="""
import time
from local.names import TopicPartition
from tiered import Config, LogManager
manager = LogManager.open(Config.load("tiered.toml"), now_ms=time.time_ns() // 1_000_000, read_only=True)
""",
    ),
    "cut-the-bill": Page(
        setup=_ON_S3,
        buckets=("logs",),
        codes={
            "tiered cost advise": (0, 3),  # 3 if a day of records costs enough to save a cent
            "tiered cost advise orders --rate orders=20GiB/d --out advice.json": 3,
        },
    ),
    "encrypt-the-bucket": Page(
        setup="mkdir -p /etc/tiered\n" + _ON_S3,
        buckets=("logs",),
        not_run={"pip install 'tiered[encryption]'": _INSTALLS},
    ),
    "monitor": Page(
        setup=NODE + "tiered -q group reset-offsets readers orders --to earliest --yes\n",
        codes=_DOCTOR,
        until={
            "tiered status --watch": Until("TOPIC", by=signal.SIGINT),
            "tiered run --metrics :9464": Until(url="http://127.0.0.1:9464/metrics"),
        },
        preamble="""
import time
from tiered import Config
config, now = Config.load("tiered.toml"), time.time_ns() // 1_000_000
""",
    ),
    "pause-uploads": Page(setup=NODE + "tiered -q topic create clicks\n"),
    "restore-from-the-bucket": Page(
        setup=_ON_S3,
        buckets=("logs",),
        preamble="""
import time
from remote.store.open_store import open_store
store, now = open_store("s3://logs/prod"), time.time_ns() // 1_000_000
clock = lambda: now
""",
    ),
    "rewrite-a-bucket": Page(
        setup="mkdir /tmp; printf '[profile new]\\naws_access_key_id = a\\naws_secret_access_key = b\\n' > /tmp/aws\n"
        + _ON_S3
        + "printf 'k1\\nk2\\n' > keys\n",
        buckets=("logs", "elsewhere"),
        exports={"TIERED_KEYS": f"2026-b {'A' * 43}=", "AWS_CONFIG_FILE": "/tmp/aws"},
        preamble="""
import time
from remote.store.open_store import open_store
store, now = open_store("s3://logs/prod"), time.time_ns() // 1_000_000
clock, ring = (lambda: now), None
""",
    ),
    "run-in-containers": Page(
        buckets=("tiered-local",),
        not_run=dict.fromkeys(
            (f"docker compose -f localstack/containers/compose.yaml {words}" for words in _COMPOSED), _DOCKER
        ),
        until={
            "tiered -C /srv/node run --metrics :9464 --kafka :9092": Until("running", and_with="--kafka :0"),
            **{
                f"tiered serve --remote s3://tiered-local/logs --port {9092 + number} --cache-dir "
                f"/var/cache/tiered-{number}": Until("to Kafka clients", and_with="--port 0")
                for number in (1, 2)
            },
        },
    ),
    "run-as-a-service": Page(
        setup=f"mkdir -p /etc/systemd/system\n{_MAKE_NODE} /srv/road\n",
        until={
            "tiered -C /srv/road run": Until("applied: "),
            "tiered -C /srv/road run --interval 5s": Until("applied: ", by=signal.SIGINT, code=130),
        },
        before=dict.fromkeys(("tiered -C /srv/road run", "tiered -C /srv/road run --interval 5s"), _MORE),
    ),
    "scrub-and-repair": Page(
        setup=_ON_S3.replace("logs/prod", "bucket/prefix"),
        buckets=("bucket",),
        before={"tiered repair scrub-20261120-101112.json --dry-run": _DAMAGE},
        codes={"tiered repair scrub-20261120-101112.json --dry-run": 3},
    ),
    "several-disks": Page(setup=_THREE_DISKS),
    "size-a-deployment": Page(setup=NODE),
    "tune-compaction": Page(setup=NODE + "tiered -q topic alter orders -X cleanup.policy=compact\n"),
    "use-s3": Page(
        buckets=("my-bucket", "logs"),
        not_run={"pip install '.[s3]'": _INSTALLS},
        codes={"tiered generate lifecycle --remote s3://logs/prod --check": 3},
        before={
            "tiered topic alter orders -X remote.log.copy.disable=true -X local.retention.ms=-2": (
                "cp /srv/road/tiered.toml . && tiered -q topic create orders\n"
            )
        },
        exports={"AWS_CONFIG_FILE": "/etc/aws"},
        setup=f"mkdir -p /etc\nprintf '[profile logs]\\nregion = us-east-1\\n' > /etc/aws\n{_IAM_ROLE}",
    ),
    "web-page": Page(setup=NODE, until={"tiered web": Until(url="http://127.0.0.1:8080/", and_with="--listen :8080")}),
}

_LOOK = Page(setup=NODE, codes=_DOCTOR)
RUNBOOKS = {
    "at-risk-bytes": _LOOK,
    "bucket-lost": _LOOK,
    "cleaner-stuck": _LOOK,
    "clock-jumped": replace(_LOOK, not_run={"timedatectl": _SYSTEM}),
    "copiers-busy": _LOOK,
    "copy-lag-grows": _LOOK,
    "corruption": replace(_LOOK, setup=NODE + _FLIP, codes={"tiered scrub --deep": 4}),
    "delete-lag": _LOOK,
    "disk-full": _LOOK,
    "group-meets-retention": _LOOK,
    "halted": _LOOK,
    "log-dir-offline": _LOOK,
    "no-rounds": replace(_LOOK, not_run={"journalctl -u tiered": _SYSTEM}),
    "no-upload-finishes": _LOOK,
    "rounds-fail": replace(_LOOK, not_run={"journalctl -u tiered": _SYSTEM}),
    "unopened": _LOOK,
    "uploads-paused": _LOOK,
    "store-fails": _LOOK,
}

# Pages that another test runs.
_SPARK = "tests/spark/test_spark_pages.py"
ELSEWHERE = {
    "backfill-with-spark": _SPARK,
    "compact-with-spark": _SPARK,
    "embed-in-python": "tests/integration/test_docs.py",
    "ingest-with-spark": _SPARK,
    "look-inside-a-log": "tests/integration/test_docs.py",
    "other-peoples-buckets": _SPARK,
    "query-with-arrow": "tests/integration/test_docs.py",
    "run-a-pipeline": _SPARK,
    "run-jobs-on-spark": _SPARK,
    "sync-to-iceberg": "tests/integration/test_docs.py",
    "change-the-code": "tests/unit/project/test_documented_tests.py",
    "run-the-tests": "tests/unit/project/test_documented_tests.py",
    "use-hdfs": "tests/integration/test_hdfs_page.py",
}
HDFS = Page(
    codes={"tiered -C /srv/road doctor --problems": (0, 3)},
    not_run={"pip install 'tiered[hdfs]'": _INSTALLS, "hdfs dfs -mkdir -p /logs": "a command of Hadoop's distribution"},
)
_SUBMITTED = "test_spark_submit.py submits such a line to a standalone cluster of its own"
# Lines of `run-jobs-on-spark` that need a cluster, or that another test runs.
NEEDS_A_CLUSTER = {
    "submit=$(python -m tiered.spark.submit)": _SUBMITTED,
    "spark-submit --master spark://master:7077 $submit rewrite recode orders --codec zstd --yes --remote "
    "s3://bucket/logs": _SUBMITTED,
    "python -m venv env && env/bin/pip install 'tiered[spark,hdfs]' venv-pack && env/bin/venv-pack -p env -o "
    "tiered.tar.gz": _INSTALLS,
    "spark-submit --master yarn --deploy-mode client --archives tiered.tar.gz#env --conf "
    "spark.pyspark.driver.python=env/bin/python --conf spark.pyspark.python=./env/bin/python $(env/bin/python -m "
    "tiered.spark.submit) scrub --deep --remote hdfs://namenode:8020/logs": "needs YARN",
    "spark-submit --master k8s://https://api:6443 --deploy-mode cluster --conf "
    "spark.kubernetes.container.image=my/tiered:1 --conf spark.kubernetes.driverEnv.AWS_REGION=eu-central-1 --conf "
    "spark.executorEnv.AWS_REGION=eu-central-1 local:///opt/venv/lib/python3.12/site-packages/tiered/spark/submit.py "
    "rewrite merge orders --yes --remote s3://bucket/logs": "needs Kubernetes",
}
NOT_RUN_COUNT = 13

"""An example for each command, at the end of its ``--help``, with a reference to the exit codes."""

from __future__ import annotations

import click

EXAMPLES = {
    "demo": "demo",
    "init": "init logs --remote s3://my-bucket/logs",
    "doctor": "-C logs doctor",
    "topic create": "topic create orders -p 4 -X retention.ms=30d",
    "topic alter": "topic alter orders -X local.retention.ms=6h",
    "topic delete": "topic delete orders --dry-run",
    "topic describe": "topic describe orders --settings",
    "topic list": "topic list -o json",
    "append": "append orders lines.txt -K :",
    "consume": "consume orders/0 --from @-2h -n 10 -f '%o %k %v\\n'",
    "dump": "dump orders/0 --records --from-offset 100 --to-offset 110",
    "verify": "verify orders --deep",
    "scrub": "scrub orders --deep --report report.json",
    "repair": "repair report.json --dry-run",
    "gc": "gc --older-than 3d",
    "adopt": "adopt /var/kafka/data orders --remote s3://my-bucket/kafka",
    "restore": "restore orders --to restored --dry-run",
    "fork": "fork orders orders-before --dry-run",
    "import": "import s3://their-bucket orders --dry-run",
    "remote ls": "remote ls s3://my-bucket/logs orders",
    "rewrite copy": "rewrite copy orders --to s3://other-bucket/logs --dry-run",
    "rewrite merge": "rewrite merge orders --target 256MiB --dry-run",
    "rewrite recode": "rewrite recode orders --codec zstd --dry-run",
    "pipeline plan": "pipeline plan node-1 node-2 --topics orders",
    "pipeline run": "pipeline run node-1 --spark none --dry-run",
    "backfill": "backfill orders --from @-30d --to s3://my-lake/orders",
    "get-offsets": "get-offsets orders --time latest",
    "delete-records": "delete-records orders/0 --before 1000 --dry-run",
    "transactions list": "transactions list orders",
    "transactions end": "transactions end orders/0 --producer-id 7 --abort --dry-run",
    "status": "status orders --check",
    "cost advise": "cost advise --out advice.json",
    "cost prices": "cost prices",
    "cost show": "cost show orders",
    "cost simulate": "cost simulate orders --retention 7d,30d --local 1h,6h",
    "plan": "plan orders -X retention.ms=7d --out plan.json",
    "compact": "compact orders --dry-run",
    "view build": "view build orders --dry-run",
    "view drop": "view drop orders --dry-run",
    "view status": "view status orders",
    "compaction advise": "compaction advise",
    "compaction status": "compaction status",
    "log-dirs": "log-dirs --partitions",
    "log-dirs move": "log-dirs move orders/0 --to /mnt/disk2/logs",
    "placement": "placement brokers.txt -p 8 -r 3",
    "apply": "apply plan.json --dry-run",
    "pause": "pause orders --reason 'the bucket moves'",
    "resume": "resume orders",
    "run": "run --metrics 127.0.0.1:9464",
    "web": "web --listen 127.0.0.1:8080",
    "bench": "bench --size 64MiB",
    "generate alerts": "generate alerts",
    "generate completion": "generate completion bash",
    "generate grafana": "generate grafana",
    "generate iam-policy": "generate iam-policy",
    "generate lifecycle": "generate lifecycle",
    "generate systemd": "generate systemd --metrics :9464",
    "config explain": "config explain retention.ms --topic orders",
    "config export": "config export",
    "config lint": "config lint",
    "completion": "completion bash",
    "rotate-keys": "rotate-keys orders --dry-run",
}
_CODES = "Exit codes: 0 done, 1 failed, 2 usage; all of them: tiered --help."


def report_example(command: click.Command, path: str) -> None:
    """Add the example to the end of the command's help, and to those of a group's commands."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            report_example(each, f"{path} {name}")
    if path in EXAMPLES:
        command.epilog = f"\b\nExample: tiered {EXAMPLES[path]}\n{_CODES}"

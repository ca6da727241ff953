"""The deploy page: its policies allow the calls that the code makes and nothing that does not exist; its alarms are on
metrics that there are, and its units in deploy/."""

import json
import re
from itertools import pairwise
from pathlib import Path

import botocore.session
import httpx
import pytest
from botocore import xform_name

from serving import inside

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BLOCKS = {  # by the bold words, or the file's name, that begin the last such line above each
    re.findall(r"^(?:\*\*|`)([^*`]+)", above, re.M)[-1]: json.loads(block.partition("```")[0])
    for above, block in pairwise(PAGE.split("```json\n"))
}
TRUSTS = {name: one for name, one in BLOCKS.items() if name.startswith("Trust of")}
POLICIES = {name: one for name, one in BLOCKS.items() if name not in TRUSTS}
FOLDERS = {"kinesis": ("stream",), "s3": ("registry", "sink")}
# An S3 permission is named for what it guards, most often for the call, but not always.
GUARDS = {
    "ListObjectsV2": "ListBucket",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "DeleteObjects": "DeleteObject",
}


def as_list(one):
    return one if isinstance(one, list) else [one]


ALLOWED = {
    action
    for policy in POLICIES.values()
    for statement in policy["Statement"]
    if statement["Effect"] == "Allow"
    for action in as_list(statement["Action"])
}


def operations(service):
    return botocore.session.Session().get_service_model(service).operation_names


@pytest.mark.parametrize("service", FOLDERS)
def test_every_call_that_the_code_makes_is_allowed_to_somebody(service):
    files = [file for folder in FOLDERS[service] for file in (ROOT / "src" / "sparring" / folder).rglob("*.py")]
    text = "\n".join(file.read_text() for file in files)
    made = {name for name in operations(service) if re.search(rf"""[."']{xform_name(name)}\b""", text)}
    assert made, f"no call to {service} was found: has the code moved?"
    missing = {f"{service}:{GUARDS.get(name, name)}" for name in made} - ALLOWED
    assert not missing, f"docs/deploy.md allows nobody {sorted(missing)}"


def test_no_policy_names_an_action_that_is_none_or_a_star():
    kinesis = {f"kinesis:{name}" for name in operations("kinesis")}
    s3 = {f"s3:{GUARDS.get(name, name)}" for name in operations("s3")}
    assert not {action for action in ALLOWED if action not in kinesis | s3}


def test_every_block_of_json_is_a_policy_of_a_role():
    assert len(BLOCKS) == PAGE.count("```json")
    assert {"Gateway", "Sink", "Trainer", "Publisher", "Reader", "Builder"} <= POLICIES.keys()
    assert len(TRUSTS) == 2
    for trust in TRUSTS.values():
        (statement,) = trust["Statement"]
        assert statement.keys() <= {"Effect", "Principal", "Action", "Condition"}
        assert (statement["Effect"], statement["Action"]) == ("Allow", "sts:AssumeRole")
        assert "*" not in json.dumps(statement["Principal"])


def test_every_allowed_statement_names_its_resource():
    for policy in POLICIES.values():
        assert policy["Version"] == "2012-10-17"
        for statement in policy["Statement"]:
            for resource in as_list(statement["Resource"]):
                assert re.match(
                    r"arn:aws:(kinesis:eu-central-1:111122223333:stream/play|s3:::studio-sparring)", resource
                )


def actions(role):
    return {action for statement in POLICIES[role]["Statement"] for action in as_list(statement["Action"])}


def test_a_machine_that_writes_cannot_read_and_the_trainer_never_sees_the_stream():
    assert actions("Game server that writes straight to the stream") == {
        "kinesis:DescribeStreamSummary",
        "kinesis:PutRecords",
    }
    assert "kinesis:PutRecords" not in actions("Sink")
    assert not [action for action in actions("Trainer") | actions("Publisher") if action.startswith("kinesis:")]
    assert actions("Reader") == {"s3:ListBucket", "s3:GetObject"}
    assert not [role for role in POLICIES if "identity/*" in json.dumps(POLICIES[role]) and role in ("Sink", "Trainer")]


def test_every_alarm_is_on_a_metric_that_a_gateway_has(tmp_path):
    table = PAGE.partition("### Metrics and alarms")[2].partition("\n### ")[0]
    named = set(re.findall(r"\b((?:spar|process)_\w+)", table))
    assert len(named) >= 8
    with inside(tmp_path) as gateway:
        shown = httpx.get(f"{gateway.url}/metrics").text
    known = {f"{name}{end}" for name in re.findall(r"^# TYPE (\w+)", shown, re.M) for end in ("", "_bucket")}
    assert not named - known


def test_every_unit_on_the_page_is_in_the_folder_and_the_other_way_round():
    there = {file.stem.partition("@")[0] for file in (ROOT / "deploy").iterdir()}
    table = PAGE.partition("| unit | runs |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)", table, re.M)) == there

"""The policies on the deploy page allow the calls that the code makes, and nothing that does not exist."""

import json
import re
from pathlib import Path

import botocore.session
import pytest
from botocore import xform_name

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
POLICIES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.S)]
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
    for policy in POLICIES
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


def test_every_allowed_statement_names_its_resource():
    for policy in POLICIES:
        assert policy["Version"] == "2012-10-17"
        for statement in policy["Statement"]:
            for resource in as_list(statement["Resource"]):
                assert re.match(
                    r"arn:aws:(kinesis:eu-central-1:111122223333:stream/play|s3:::studio-sparring)", resource
                )


def test_a_machine_that_writes_cannot_read_and_the_trainer_never_sees_the_stream():
    server, _, sink, trainer, reader, *_ = [
        {action for statement in policy["Statement"] for action in as_list(statement["Action"])} for policy in POLICIES
    ]
    assert server == {"kinesis:DescribeStreamSummary", "kinesis:PutRecords"}
    assert "kinesis:PutRecords" not in sink
    assert not [action for action in trainer if action.startswith("kinesis:")]
    assert reader == {"s3:ListBucket", "s3:GetObject"}

"""The policy allows what a run does, and denies what nobody should."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.errors import ConfigError, ProtectedPrefix
from tasks.storage.config import StoreConfig
from tasks.storage.policy import make_lifecycle, make_policy, to_document
from tests.support.simulator import ROOT

RUN = StoreConfig(uri="s3://my-bucket/expansion_v1/run1")


def read_statements(config: StoreConfig, principal: str | None = None) -> dict[str, dict[str, Any]]:
    return {s.body["Sid"]: s.body for s in make_policy(config, principal)}


def test_the_shipped_example_is_what_is_made() -> None:
    folder = ROOT / "infra/policy"
    assert json.loads((folder / "run.json").read_text()) == to_document(make_policy(RUN))
    assert json.loads((folder / "lifecycle.json").read_text()) == make_lifecycle(RUN)


def test_every_statement_is_explained_on_its_page_and_has_a_reason() -> None:
    page = (ROOT / "infra/policy/README.md").read_text()
    for statement in make_policy(RUN):
        assert f"`{statement.body['Sid']}`" in page
        assert statement.why


def test_no_statement_allows_more_than_the_two_prefixes_and_none_allows_deleting() -> None:
    for body in read_statements(RUN).values():
        if body["Effect"] == "Allow":
            assert not any("Delete" in action or action == "s3:*" for action in body["Action"])
            if body["Action"] == ["s3:ListBucket"]:
                assert body["Condition"]["StringLike"]["s3:prefix"] == [
                    "expansion_v1/run1/*",
                    "expansion_v1/run1-prefect-results/*",
                ]
            else:
                assert body["Resource"] in {
                    "arn:aws:s3:::my-bucket/expansion_v1/run1/*",
                    "arn:aws:s3:::my-bucket/expansion_v1/run1-prefect-results/*",
                }


def test_a_put_without_the_condition_is_denied_on_the_run_and_not_on_the_results() -> None:
    denied = read_statements(RUN)["NeverOverwriteData"]
    assert denied["Effect"] == "Deny"
    assert denied["Condition"]["Null"] == {"s3:if-none-match": "true"}
    assert denied["Resource"] == ["arn:aws:s3:::my-bucket/expansion_v1/run1/*"]


def test_each_protected_prefix_is_denied_altogether() -> None:
    config = RUN.model_copy(
        update={"protected": ("completions/", "s3://other/archive/", "file:///x")}
    )
    bodies = read_statements(config)
    assert bodies["Protected1"]["Resource"][0] == "arn:aws:s3:::my-bucket/completions/*"
    assert bodies["Protected2"]["Resource"][0] == "arn:aws:s3:::other/archive/*"
    assert "Protected3" not in bodies
    assert all(bodies[sid]["Action"] == ["s3:*"] for sid in ("Protected1", "Protected2"))


def test_results_in_another_bucket_are_listed_there() -> None:
    config = RUN.model_copy(update={"results_uri": "s3://results/prefect"})
    bodies = read_statements(config)
    assert bodies["ListResults"]["Resource"] == "arn:aws:s3:::results"
    assert bodies["WriteResults"]["Resource"] == "arn:aws:s3:::results/prefect/*"
    assert bodies["ListOwnPrefixes"]["Condition"]["StringLike"]["s3:prefix"] == [
        "expansion_v1/run1/*"
    ]


def test_results_in_a_folder_get_no_statement_and_no_rule() -> None:
    config = RUN.model_copy(update={"results_uri": "file:///srv/results"})
    bodies = read_statements(config)
    assert "WriteResults" not in bodies
    assert bodies["NeverDelete"]["Resource"] == ["arn:aws:s3:::my-bucket/expansion_v1/run1/*"]
    assert make_lifecycle(config) == {"Rules": []}


def test_a_bucket_that_is_protected_whole_is_denied_whole() -> None:
    bodies = read_statements(RUN.model_copy(update={"protected": ("s3://other",)}))
    assert bodies["Protected"]["Resource"] == ["arn:aws:s3:::other/*", "arn:aws:s3:::other"]


def test_a_bucket_policy_names_whom_it_is_about() -> None:
    arn = "arn:aws:iam::123456789012:role/gpu-box"
    assert all(body["Principal"] == {"AWS": arn} for body in read_statements(RUN, arn).values())
    assert not any("Principal" in body for body in read_statements(RUN).values())


def test_a_folder_has_no_policy_and_a_protected_prefix_gets_none() -> None:
    with pytest.raises(ConfigError):
        make_policy(StoreConfig(uri="file:///srv/run"))
    with pytest.raises(ProtectedPrefix):
        make_policy(StoreConfig(uri="s3://my-bucket/completions/run"))

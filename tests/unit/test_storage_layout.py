"""Keys stay within the prefix, and prefixes away from what is protected."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import ProtectedPrefix, StoreError
from tasks.storage import layout
from tasks.storage.location import parse_uri

HOSTILE = st.one_of(
    st.text(),
    st.text(alphabet="./\\\0%~aA \n\u202e"),
    st.sampled_from(
        ["..", "../x", "/etc", "a/../..", "%2e%2e", "", "-" * 5000, "CON", "é", "e\u0301"]
    ),
)
ESCAPES = ["", "/", "a//b", "/a", "a/", "../a", "a/../b", "a/.", "a\\b", "a\0b", "a\nb", "a\x85"]


@given(source=HOSTILE, index=st.integers(0, 10**9))
def test_no_name_of_a_source_leaves_its_folder(source: str, index: int) -> None:
    for key in (
        layout.extracted_key(source, index),
        layout.rejections_key(source),
        layout.seen_key(source),
    ):
        assert layout.check_key(key) == key
        assert key.startswith("extracted/")
        assert key.isascii()
        assert len(key.split("/")) == 3


@given(one=HOSTILE, other=HOSTILE)
def test_two_sources_share_no_segment(one: str, other: str) -> None:
    assert (layout.source_segment(one) == layout.source_segment(other)) == (one == other)


def test_names_that_differ_in_case_only_do_not_meet_on_any_file_system() -> None:
    segments = {layout.source_segment(name).lower() for name in ("Code", "code", "CODE")}
    assert len(segments) == 3


@pytest.mark.parametrize(
    "key", [*ESCAPES, ".hidden", "a/.tmp", "a" * 300, "\ud800", "b/" * 600 + "c"]
)
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        layout.check_key(key)


@given(key=st.text(max_size=40))
def test_a_key_that_passes_has_plain_segments_only(key: str) -> None:
    try:
        layout.check_key(key)
    except ValueError:
        return
    segments = key.split("/")
    assert "\\" not in key
    assert all(segment and not segment.startswith(".") for segment in segments)
    assert all(c.isprintable() or ord(c) > 159 for c in key)


@given(chunk_id=st.integers(0, 10**8), revision=st.integers(0, 10**4))
def test_data_keys_are_read_back(chunk_id: int, revision: int) -> None:
    key = layout.data_key(chunk_id, revision)
    assert layout.parse_data_key(key) == (chunk_id, revision)
    assert key.startswith(layout.part_prefix(0, chunk_id))


def test_the_prefix_of_a_chunk_is_no_other_chunks() -> None:
    assert not layout.data_key(1_234_567).startswith(layout.part_prefix(0, 123_456))


@pytest.mark.parametrize(
    "key",
    ["data/part-1.jsonl.zst", "data/part-0000001.jsonl.zst", "data/part-000001.r0.jsonl.zst",
     "data/part-٠٠٠٠٠١.jsonl.zst", "x/data/part-000001.jsonl.zst", "data/part-000001.jsonl.zst\n"],
)  # fmt: skip
def test_a_key_of_another_spelling_is_no_data_key(key: str) -> None:
    assert layout.parse_data_key(key) is None


def test_the_layout_is_the_one_on_record() -> None:
    sha = "0123456789abcdef" * 4
    assert [
        layout.request_key(),
        layout.plan_key(),
        layout.extracted_key("gsm8k", 0),
        layout.prompts_key(0),
        layout.data_key(123),
        layout.data_key(123, 1),
        layout.tokens_key("abcdef012345", layout.data_key(123, 1), sha),
        layout.tokens_key("abcdef012345", layout.data_key(123), sha, 2),
        layout.shard_key(0, 7),
        layout.report_key(0),
        layout.canary_key(),
        layout.manifest_key(0),
    ] == [
        "_run/request.json",
        "_run/plan.json",
        "extracted/gsm8k/part-000000.parquet",
        "prompts/part-000000.parquet",
        "data/part-000123.jsonl.zst",
        "data/part-000123.r1.jsonl.zst",
        "tokens/abcdef012345/part-000123.r1-0123456789ab.parquet",
        "tokens/abcdef012345/part-000123-0123456789ab.r2.parquet",
        "dataset/r0000/part-000007.parquet",
        "report/r0000/index.html",
        "report/canary.html",
        "_manifest/r0000.json",
    ]
    assert layout.parse_manifest_key("_manifest/r0012.json") == 12
    assert layout.parse_manifest_key("_manifest/r00012.json") is None


@pytest.mark.parametrize(
    ("uri", "protected"),
    [
        ("s3://bucket/completions", "completions/"),
        ("s3://bucket/completions/", "completions"),
        ("s3://bucket/completions/run", "completions/"),
        ("s3://bucket", "completions/"),
        ("s3://bucket/a", "a/completions"),
        ("s3://bucket/a/b", "s3://bucket/a/"),
        ("file:///srv/completions", "completions/"),
        ("file:///srv/completions/run", "completions/"),
        ("file:///srv/completions/deep/er/run", "completions/"),
        ("file:///srv", "file:///srv/completions"),
    ],
)
def test_a_prefix_that_touches_a_protected_one_is_refused(uri: str, protected: str) -> None:
    with pytest.raises(ProtectedPrefix) as caught:
        layout.check_prefix(uri, [protected, "elsewhere"])
    assert protected in caught.value.what


@pytest.mark.parametrize(
    ("uri", "protected"),
    [
        ("s3://bucket/completionsX", "completions/"),
        ("s3://bucket/completionsX/", "completions"),
        ("s3://bucket/my/completions", "completions/"),
        ("s3://bucket/run", "s3://other/run"),
        ("s3://bucket/run", "file:///run"),
        ("file:///srv/completionsX/run", "completions"),
        ("file:///srv/run", "completions/"),
    ],
)
def test_a_prefix_beside_a_protected_one_is_fine(uri: str, protected: str) -> None:
    assert layout.check_prefix(uri, [protected]).uri == uri.rstrip("/")


@pytest.mark.parametrize(
    "uri",
    ["ftp://h/x", "s3://", "s3:///x", "s3://bkt/../completions", "s3://bkt//x", "file://x/y", "/x",
     "file:///a/../b", "file:///a\\b", "s3://bkt/a\0"],
)  # fmt: skip
def test_a_malformed_uri_is_refused_with_the_remedy(uri: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse_uri(uri)
    assert "store.uri" in caught.value.remedy


def test_a_folder_with_a_space_and_a_percent_sign_is_found_again() -> None:
    folder = Path("/srv/my data/50%20/r\u00e9sum\u00e9")
    location = parse_uri(folder.as_uri())
    assert f"/{location.path}" == str(folder)
    assert parse_uri(location.uri) == location
    with pytest.raises(StoreError):
        parse_uri("file:///srv/%2e%2e/completions")


def test_a_doubled_event_derives_the_same_prefix_and_another_revision_another() -> None:
    commit, asked = "0123456789abcdef0123456789abcdef01234567", "fe" * 32
    first = layout.derive_prefix("s3://bucket/auto", "code", commit, asked)
    assert first == "s3://bucket/auto/code@0123456789ab-fefefefe"
    long_tags = {
        layout.derive_prefix("s3://bkt/a", "code", f"release-2025-{n}", asked) for n in "12"
    }
    assert len(long_tags) == 2
    leaf = first.rpartition("/")[2]
    assert layout.parse_derived(leaf) == ("0123456789ab", "fefefefe")
    for other in (f"{leaf}-prefect-results", "_run", "code", "@0123456789ab-fefefefe"):
        assert layout.parse_derived(other) is None
    hostile = layout.derive_prefix("s3://bkt/a", "../../completions", "../../x", asked)
    assert hostile.startswith("s3://bkt/a/completions-")


def test_results_never_share_a_prefix_with_data() -> None:
    assert layout.derive_results_uri("s3://bkt/run/", None, ()) == "s3://bkt/run-prefect-results"
    for results in ("s3://bkt/run", "s3://bkt/run/results", "s3://bkt"):
        with pytest.raises(StoreError):
            layout.derive_results_uri("s3://bkt/run", results, ())
    with pytest.raises(ProtectedPrefix):
        layout.derive_results_uri("s3://bkt/run", "s3://bkt/completions/results", ("completions/",))

"""Replies that get lost between the store and us cost nothing and double nothing."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tasks.errors import CredentialsRefused, KeyTaken, OverwritePossible, StoreUnreachable
from tasks.storage.store import ArtifactStore, open_store
from tests.support.proxy import FaultyProxy, start_proxy
from tests.support.s3 import S3Server


@pytest.fixture
def proxy(seaweedfs: S3Server) -> Iterator[FaultyProxy]:
    with start_proxy(int(seaweedfs.endpoint_url.rpartition(":")[2])) as running:
        yield running


@pytest.fixture
def shaky_store(
    seaweedfs: S3Server, proxy: FaultyProxy, request: pytest.FixtureRequest
) -> Iterator[ArtifactStore]:
    config = seaweedfs.config(f"shaky/{request.node.name}", endpoint_url=proxy.url)
    store = open_store(config, seaweedfs.credentials)
    yield store
    store.close()


def test_a_lost_acknowledgement_of_our_own_write_is_success(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    proxy.lose_reply("PUT")
    stat = shaky_store.create("key", b"written once")
    assert proxy.n_broken == 1
    assert stat.n_bytes == len(b"written once")
    assert shaky_store.get("key") == b"written once"


def test_a_lost_refusal_of_anothers_write_stays_a_refusal(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    shaky_store.create("key", b"theirs")
    proxy.lose_reply("PUT")
    with pytest.raises(KeyTaken):
        shaky_store.create("key", b"ours")
    assert shaky_store.get("key") == b"theirs"


def test_a_conflict_with_another_write_under_way_is_tried_again(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    proxy.refuse("PUT", 409)
    proxy.refuse("PUT", 409)
    shaky_store.create("key", b"ours")
    assert proxy.n_broken == 2
    assert shaky_store.get("key") == b"ours"


def test_a_server_that_says_exists_of_what_it_does_not_hold_is_refused(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    for _ in range(20):
        proxy.refuse("PUT", 412)
    with pytest.raises(OverwritePossible):
        shaky_store.create("key", b"ours")


def test_where_a_policy_forbids_head_the_listing_tells(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    shaky_store.create("key", b"four")
    for key, n_bytes in (("key", 4), ("ke", None)):
        proxy.refuse("HEAD", 403)
        stat = shaky_store.head(key)
        assert (stat and stat.n_bytes) == n_bytes
    assert proxy.n_broken == 2


def test_a_stream_goes_on_from_where_its_connection_broke(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    data = bytes(range(251)) * 20_000
    shaky_store.create("large", data)
    proxy.cut_reply("GET", 1_500_000)
    proxy.cut_reply("GET", 700_000)
    with shaky_store.open("large") as stream:
        assert stream.read() == data
    assert proxy.n_broken == 2


def test_a_stream_that_breaks_again_and_again_is_given_up(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    shaky_store.create("large", bytes(3_000_000))
    for _ in range(30):
        proxy.cut_reply("GET", 50_000)
    with pytest.raises(StoreUnreachable), shaky_store.open("large") as stream:
        stream.read()


def test_wrong_bytes_on_their_way_are_asked_for_again(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    data = bytes(range(256)) * 4000
    shaky_store.create("key", data)
    proxy.corrupt_reply("GET", 60_000)
    assert shaky_store.get("key") == data
    assert proxy.n_broken == 1


@pytest.mark.parametrize("code", ["ExpiredToken", "TokenRefreshRequired"])
def test_credentials_that_expire_in_a_run_are_named_with_the_remedy(
    shaky_store: ArtifactStore, proxy: FaultyProxy, code: str
) -> None:
    for _ in range(6):
        proxy.refuse("PUT", 400, code)
    with pytest.raises(CredentialsRefused, match="no longer accepted") as caught:
        shaky_store.create("key", b"x")
    assert "resumes" in caught.value.remedy


def test_a_policy_that_forbids_is_told_at_once(
    shaky_store: ArtifactStore, proxy: FaultyProxy
) -> None:
    proxy.refuse("PUT", 403, "AccessDenied")
    with pytest.raises(CredentialsRefused, match="AccessDenied"):
        shaky_store.create("key", b"x")
    assert proxy.n_broken == 1, "a refusal is not tried again"


def test_a_busy_store_is_waited_for(shaky_store: ArtifactStore, proxy: FaultyProxy) -> None:
    for _ in range(3):
        proxy.refuse("PUT", 503, "SlowDown")
    shaky_store.create("key", b"x")
    proxy.refuse("GET", 503, "SlowDown")
    assert shaky_store.get("key") == b"x"
    assert proxy.n_broken == 4


def test_a_store_that_is_busy_when_it_is_opened_is_waited_for(
    seaweedfs: S3Server, proxy: FaultyProxy
) -> None:
    for _ in range(4):
        proxy.refuse("GET", 503, "SlowDown")
    store = open_store(seaweedfs.config("busy/run", endpoint_url=proxy.url), seaweedfs.credentials)
    store.close()
    assert proxy.n_broken == 4


@pytest.mark.parametrize(("offset", "says"), [(2000, "behind"), (-2000, "ahead")])
def test_a_skewed_clock_is_told_with_its_offset(
    seaweedfs: S3Server, proxy: FaultyProxy, offset: int, says: str
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=offset), usegmt=True)
    for _ in range(4):
        proxy.refuse("GET", 403, "RequestTimeTooSkewed", date)
    with pytest.raises(CredentialsRefused) as caught:
        open_store(seaweedfs.config("skewed", endpoint_url=proxy.url), seaweedfs.credentials)
    assert re.search(rf"(1,99\d|2,00\d) s {says}", caught.value.what)
    assert "NTP" in caught.value.remedy


def test_a_store_that_stalls_is_asked_again(seaweedfs: S3Server, proxy: FaultyProxy) -> None:
    config = seaweedfs.config("stalled", endpoint_url=proxy.url, read_timeout_seconds=3)
    store = open_store(config, seaweedfs.credentials)
    proxy.stall("PUT", 6)
    store.create("key", b"x")  # the first try's write stands, and is known for ours
    assert proxy.n_broken == 1
    assert store.get("key") == b"x"
    store.close()

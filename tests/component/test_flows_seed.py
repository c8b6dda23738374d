"""A new private home begins with a migrated database, and one that is there is never touched."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from flows.process.seed import SEED, plant_seed


def test_a_home_is_seeded_once_with_every_migration(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert not plant_seed(home, tmp_path / "none"), "without a seed, Prefect migrates by itself"
    assert SEED.exists(), "`make setup` makes it: python -m flows.process.seed"
    assert plant_seed(home)
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
        assert {"alembic_version", "flow_run", "task_run"} <= tables
        database.execute("create table mine (id integer)")
        database.commit()
    assert not plant_seed(home)
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        assert list(database.execute("select count(*) from mine")) == [(0,)]
    assert (home / "prefect.db").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == ["prefect.db"]

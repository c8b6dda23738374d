"""An empty Prefect database with all its migrations: `python -m flows.process.seed`, at set-up.

Enters: nothing. Leaves: a file in this environment, which each new private home begins with. It
exists because the migrations are half of a first start; where the file is missing, or of an older
Prefect, the server migrates by itself, and only time is lost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SEED = Path(sys.prefix) / "share" / "draftmill" / "prefect.db"
DATABASE = "prefect.db"


def make_seed(seed: Path = SEED) -> None:
    """Migrate an empty database and put it in its place.

    Raises:
        CalledProcessError: Prefect could not migrate it.
    """
    with tempfile.TemporaryDirectory(prefix="draftmill-seed-") as folder:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        env |= {"PREFECT_HOME": folder, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        seed.parent.mkdir(parents=True, exist_ok=True)
        seed.unlink(missing_ok=True)
        _copy_whole(Path(folder) / DATABASE, seed)


def plant_seed(prefect_home: Path, seed: Path = SEED) -> bool:
    """Begin a home without a database with the migrated one; tells whether it did."""
    if (prefect_home / DATABASE).exists() or not seed.exists():
        return False
    return _copy_whole(seed, prefect_home / DATABASE)


def _copy_whole(source: Path, target: Path) -> bool:
    """Copy a file so that it appears at once and whole, and never over one that is there."""
    copy = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, copy)
        copy.chmod(0o600)
        os.link(copy, target)
    except FileExistsError:
        return False
    finally:
        copy.unlink(missing_ok=True)
    return True


if __name__ == "__main__":
    make_seed()

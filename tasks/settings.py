"""Machine facts and secrets: read once at the edge from `DRAFTMILL_*`, never part of a request.

Enters: the process environment. Leaves: one frozen Settings. It exists so that no room reads
os.environ on its own, and so that a secret has one place, outside of every flow parameter.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tasks.errors import UserError


class Settings(BaseSettings):
    """What belongs to this machine and its operator rather than to a run."""

    model_config = SettingsConfigDict(env_prefix="DRAFTMILL_", frozen=True, extra="ignore")

    home: Path = Field(
        default=Path.home() / ".draftmill",
        description="Folder for journals, server state and logs, and the private Prefect home.",
    )
    server_api_key: SecretStr | None = Field(
        default=None, description="Key sent to the inference servers as a bearer token."
    )
    hf_token: SecretStr | None = Field(
        default=None, description="Hub token for gated datasets and models."
    )

    s3_access_key_id: SecretStr | None = Field(
        default=None,
        description="Access key that `store.s3.credentials_block` is created or renewed with.",
    )
    s3_secret_access_key: SecretStr | None = Field(default=None, description="Its secret.")

    @field_validator("home")
    @classmethod
    def _home_is_a_folder(cls, home: Path) -> Path:
        # Absolute: the supervisor and Prefect's processes work in folders of their own.
        try:
            home = home.expanduser().absolute()
            nearest = next(folder for folder in (home, *home.parents) if folder.exists())
        except (OSError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        if not nearest.is_dir():
            raise ValueError(f"{nearest} is a file where a folder is needed")
        return home

    @property
    def spool_dir(self) -> Path:
        """Folder of the journals."""
        return self.home / "spool"

    @property
    def results_dir(self) -> Path:
        """Folder of Prefect's results where they cannot lie in the store."""
        return self.home / "results"

    @property
    def fleet_dir(self) -> Path:
        """Folder of the supervisor's state and the servers' logs."""
        return self.home / "fleet"

    @property
    def cuda_dir(self) -> Path:
        """Folder of the private CUDA homes that `validate --apply` composes."""
        return self.home / "cuda"

    @property
    def servers_dir(self) -> Path:
        """Folder of the servers' Python environments, one a version of sglang."""
        return self.home / "servers"

    @property
    def prefect_home(self) -> Path:
        """Folder of the embedded Prefect's database and profile."""
        return self.home / "prefect"


@lru_cache(maxsize=1)
def read_settings() -> Settings:
    """Read the settings once a process.

    Raises:
        UserError: A variable of the environment cannot be used.
    """
    try:
        return Settings()
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(
            fault["msg"].removeprefix("Value error, "),
            where=f"DRAFTMILL_{fault['loc'][0]}".upper(),
            remedy="Set the variable to another value, or unset it.",
        ) from None

"""Shows the least-privilege policy of a run's bucket, with a reason for each statement."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from flows.configuration.load import load_config
from tasks.storage.policy import make_lifecycle, make_policy, to_document


def find_policy(config: str, principal: str | None) -> dict[str, Any]:
    """Make the policy, the lifecycle rule and the reasons for a configuration's store.

    Raises:
        ConfigError: The configuration cannot be used, or its store is no bucket.
        ProtectedPrefix: The run's prefix touches a protected one.
    """
    store = load_config(config).config.store
    statements = make_policy(store, principal)
    return {
        "uri": store.uri,
        "attach_to": principal or "a role or user",
        "policy": to_document(statements),
        "lifecycle": make_lifecycle(store),
        "reasons": {statement.body["Sid"]: statement.why for statement in statements},
    }


def describe_policy(found: dict[str, Any]) -> RenderableType:
    """Lay out the documents, then the reasons."""
    documents = [
        f"Policy for {found['uri']}, to be attached to {found['attach_to']}:",
        json.dumps(found["policy"], indent=2),
        "",
        "Lifecycle of the bucket (aws s3api put-bucket-lifecycle-configuration; it replaces the "
        "rules that are there):",
        json.dumps(found["lifecycle"], indent=2),
        "",
    ]
    reasons = [f"{sid}: {why}" for sid, why in found["reasons"].items()]
    return Group(*(escape(line) for line in (*documents, *reasons)))

"""How each documented command is run by a test, or which test runs it.

Enters: nothing. Leaves: tables that tests/real/test_commands.py runs, and that
tests/unit/test_documented.py holds against the pages: a command that stands in none of them fails.
"""

from __future__ import annotations

PREFIX = "s3://my-bucket/expansion_v1/run1"

# What is run, in this order, for what a page says; "" where it is run as it stands.
STEPS = {
    "draftmill --help": "",
    "draftmill COMMAND --help": "draftmill sources --help",
    "draftmill completion bash --install": "",
    "draftmill sources add rows.jsonl": "",
    "draftmill sources add FILE": "draftmill sources add rows.jsonl --into run2.yaml",
    "draftmill sources show NAME": "draftmill sources show mine --config run.yaml",
    "draftmill config show run.yaml --origin": "",
    "draftmill validate run.yaml": "",
    "draftmill validate run.yaml --apply": "",
    "draftmill validate --undo": "",
    "draftmill validate [CONFIG]": "draftmill validate",
    "draftmill plan run.yaml": "",
    "draftmill mix run.yaml": "",
    "draftmill estimate run.yaml": "",
    "draftmill policy run.yaml": "",
    "draftmill policy CONFIG": "draftmill policy run.yaml",
    "draftmill policy run.yaml --json | jq .policy > policy.json": "",
    # Eight gigabytes of wheels: what it would do. The pins are resolved by
    # tests/real/test_environment_pins.py, and a real environment is built of small wheels by
    # tests/component/test_flows_install.py.
    "draftmill servers install --sglang 0.5.12 --to /opt/sglang": (
        "draftmill servers install --sglang 0.5.12 --to /opt/sglang --dry-run"
    ),
    "draftmill servers install --sglang 0.5.12": (
        "draftmill servers install --sglang 0.5.12 --dry-run"
    ),
    "draftmill servers up CONFIG": "draftmill servers up fleet.yaml",
    "draftmill servers status": "",
    "draftmill servers logs": "",
    "draftmill servers down": "",
    # With --json as well, as ANSWERS would ask anew what takes long.
    "draftmill run try.yaml": "draftmill run try.yaml --json",
    "draftmill run run.yaml": "",
    "draftmill status s3://my-bucket/expansion_v1/run1": "",
    "draftmill status PREFIX --watch --json": f"draftmill status {PREFIX} --watch --json",
    "draftmill verify PREFIX": f"draftmill verify {PREFIX}",
    "draftmill retry-failures run.yaml": "draftmill retry-failures run.yaml --json",
    "draftmill repair PREFIX": f"draftmill repair {PREFIX}",
    "draftmill repair PREFIX|CONFIG": "draftmill repair run.yaml --json",
    "draftmill report PREFIX --to FILE": f"draftmill report {PREFIX} --to report.html",
    "draftmill show SAMPLE_ID PREFIX": f"draftmill show SAMPLE_ID {PREFIX}",
    "draftmill export PREFIX --to FOLDER": f"draftmill export {PREFIX} --to exported",
    "draftmill push PREFIX --to OWNER/NAME": f"draftmill push {PREFIX} --to someone/answers",
}
# A judgement of this very box; none of them is the doctor's own failure.
CODES = {name: (0, 1, 2) for name in STEPS if name.startswith("draftmill validate")}

# What the other commands are asked with --json, and the code that each ends with.
ANSWERS = {
    "demo": ("--out rows.jsonl", 2),
    "validate": ("run.yaml", 0),
    "plan": ("run.yaml", 0),
    "mix": ("run.yaml", 0),
    "estimate": ("run.yaml", 0),
    "tune": ("run.yaml --set serving.mode=attach", 2),
    "status": (PREFIX, 0),
    "verify": (PREFIX, 0),
    "report": (f"{PREFIX} --to again.html", 0),
    "show": (f"SAMPLE_ID {PREFIX}", 0),
    "export": (f"{PREFIX} --to again --format messages", 0),
    "push": (f"{PREFIX} --to someone/answers", 0),
    "policy": ("run.yaml", 0),
    "completion": ("fish", 0),
    "config show": ("run.yaml", 0),
    "servers up": ("run.yaml --set serving.mode=attach", 2),
    "servers logs": ("", 0),
    "servers status": ("", 0),
    "servers install": ("--sglang 0.5.12 --dry-run", 0),
    "servers down": ("", 0),
    "sources add": ("rows.jsonl", 0),
    "sources show": ("mine --config run.yaml", 0),
}

# The test that runs a command, which must hold its words.
_DEMO = "tests/e2e/test_demo.py::test_the_demo_ends_with_a_whole_dataset_and_no_noise"
_TUNE = "tests/real/test_flows_tune.py::test_the_winner_becomes_a_profile_with_the_evidence_in_it"
_RETRY = (
    "tests/real/test_operate_database.py"
    "::test_of_hundreds_of_chunks_a_retry_from_prefect_executes_the_failed_one_alone"
)
_NEW_USER = (
    "tests/real/test_new_user.py::test_from_a_clean_clone_to_a_scheduled_run_that_a_worker_executes"
)
_CANCEL = (
    "tests/real/test_operate_ends.py"
    "::test_cancel_leaves_no_process_and_the_same_parameters_finish_the_run"
)
_COMMIT = (
    "tests/real/test_operate_triggers.py"
    "::test_a_schedule_finds_a_commit_and_its_run_answers_the_new_rows_alone"
)
_RUN_PAGE = "tests/real/test_flows_run_page.py::test_a_person_can_follow_a_run_by_its_artifacts"
ELSEWHERE = {
    "draftmill status --root run.yaml": _RUN_PAGE,
    "draftmill run run.yaml --source mine": _RUN_PAGE,
    "draftmill demo": _DEMO,
    "make demo": _DEMO,
    "draftmill tune run.yaml": _TUNE,
    "draftmill tune CONFIG": _TUNE,
    "prefect server start": _NEW_USER,
    "make deploy CONFIG=run.yaml": _NEW_USER,
    "prefect worker start --pool gpu-box": _NEW_USER,
    # The same command on another box: its pool has another name.
    "prefect worker start --pool gpu-box-2": _NEW_USER,
    "prefect deployment schedule create expand/box --interval 86400": _NEW_USER,
    "prefect deployment schedule ls NAME": _NEW_USER,
    "prefect deployment schedule resume NAME ID": _NEW_USER,
    "prefect flow-run retry ID": _RETRY,
    "prefect flow-run cancel ID": _CANCEL,
    "prefect variable ls": _COMMIT,
    "prefect variable unset NAME": _COMMIT,
}

# What no test runs, and why, in the words of docs/limits.md. Of a target of make it is tested that
# it is there and can be worked out.
_SUITES = "`make check`, `make test` and `make test-real` are what runs every test"
_CHANGES = "`make setup-dev` and `make format` change the environment and the files"
_GPU = "`make test-gpu` wants a card"
NOT_HERE = {
    "make check": _SUITES,
    "make test": _SUITES,
    "make test-real": _SUITES,
    "make setup-dev": _CHANGES,
    "make format": _CHANGES,
    "make test-gpu": _GPU,
    "make bench": "benchmarks take minutes of a quiet machine",
}

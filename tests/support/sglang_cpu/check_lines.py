"""Holds launch lines against the parser of the sglang that runs this: JSON lists in, JSON out.

Run by the servers' interpreter. Standard input: `{"lines": [[flag, ...], ...], "capability": 12}`.
Leaves on the last line of standard output one entry a line: "" where it was taken, else why not.
The box has no card: that there is one, and of which architecture, is told to the parser.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    from sglang.srt import server_args  # type: ignore[import-not-found]  # noqa: TID251

    asked = json.load(sys.stdin)
    parser: Any = server_args
    parser.is_cuda = lambda: True
    parser.is_sm100_supported = lambda: asked["capability"] == 10
    parser.is_sm120_supported = lambda: asked["capability"] == 12
    answers = []
    for line in asked["lines"]:
        try:
            parser.prepare_server_args([*line, "--device", "cuda"])
            answers.append("")
        except SystemExit as ended:
            answers.append(f"exit {ended.code}")
        except Exception as error:  # noqa: BLE001  # whatever it says is the answer
            answers.append(f"{type(error).__name__}: {error}")
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()

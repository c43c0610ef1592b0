"""Tables that say "false" need a certificate that says so of the statement as printed."""

import re

import pandas as pd

from nclib import paths
from nclib.papers.certify import certify, ids


def uncertified(table):
    """The rows that say "false" without one; ids stand in the column certificate, or in the
    remark's command. `test_certify` has those of the steps of the proofs checked by the
    archived code."""
    verdicts = table.get("verdict", table.iloc[:, 0]).astype(str)
    rows = table[verdicts.str.startswith("false")]
    steps = set(pd.read_csv(paths.published() / "sun_shi_2024_steps.csv")["id"])
    return [
        row for row in rows.to_dict("records") if row.get("claim") not in steps and not _shown(row)
    ]


def _shown(row):
    command = re.search(r"nclib certify (\w+)", str(row.get("remark", "")))
    name = row.get("certificate", command[1] if command else "")
    if name not in ids():
        return False
    (result,) = certify([name])
    return result.ok and (result.verdict, result.reading) == ("false", "as printed")

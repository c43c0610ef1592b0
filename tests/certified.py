"""Tables that say "false" need a certificate that says so of the statement as printed."""

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from nclib import compare, paths
from nclib.papers import certify as certificates
from nclib.papers.certify import certify, ids


def uncertified(table):
    """The rows that say "false" without one; ids stand in the column certificate, or in the
    remark's command. `test_certify` has those of the steps of the proofs checked by the
    archived code. The scorecard's counts name no statement; the rows that they count do."""
    if list(table.columns) == ["part", "verdict", "scale", "rows"]:
        return []
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


def wrong_verdicts(tables: Iterable[Path | str]) -> list:
    """Rows of saved tables whose verdict is no word of the vocabulary, has no scale where it needs
    one or has one where it needs none, or says "false" without a certificate."""
    wrong = []
    for path in tables:
        for row in pd.read_csv(path, keep_default_na=False).to_dict("records"):
            if "verdict" not in row:
                continue
            word = row["verdict"].split(" if ")[0]
            needs_a_scale = word in compare.VERDICTS.keys() - {"reported", "not run"}
            scales = [*compare.SCALES] if needs_a_scale else ["", *compare.SCALES]
            known = {*certificates.VERDICTS, *compare.VERDICTS}
            if word not in known or row.get("scale", "") not in scales:
                wrong.append((str(path), row["verdict"], row.get("scale", "")))
        wrong += uncertified(pd.read_csv(path))
    return wrong

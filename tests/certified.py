"""Tables that say "false" need a certificate that says so of the statement as printed."""

import re

from nclib.papers.certify import certify, ids


def uncertified(table):
    """The rows that say "false" without one; ids stand in the column certificate, or in the remark's command."""
    rows = table[table.get("verdict", table.iloc[:, 0]).astype(str).str.startswith("false")]
    return [row for row in rows.to_dict("records") if not _shown(row)]


def _shown(row):
    found = re.search(r"nclib certify (\w+)", str(row.get("remark", "")))
    name = str(row.get("certificate", found[1] if found else ""))
    if name not in ids():
        return False
    (record,) = certify([name])
    return record.ok and (record.verdict, record.reading) == ("false", "as printed")

"""The words of verdicts on statements and proofs, and what each means. Those on experiments: `nclib.compare.VERDICTS`."""

STATEMENTS = {
    "holds": "true as stated, with the misprint corrected that its certificate names, or in every case computed",
    "holds if": "true where the condition named is met, and not in general",
    "false": "refuted by an exact certificate",
    "typo": "a misprint; what was meant stands elsewhere in the paper or follows from it",
    "proof gap": "no case against it, but the paper's proof does not show it",
    "vacuous": "nothing meets its premise",
    "not shown": "neither shown nor refuted here",
}
"""Of theorems and steps of proofs."""

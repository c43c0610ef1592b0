"""The words of all verdicts and what each means: one vocabulary for tables, their legend, tests and documentation.

A verdict is one of these words; the rest is in a column of its own, `remark`, and how far the
evidence reaches in the column `scale`.
"""

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

EXPERIMENTS = {
    "supported": "significant, and on the side that the paper claims; at the paper's or reduced scale",
    "contradicted": "significant, and on the other side; at the paper's or reduced scale",
    "as claimed here": "significant, and on the side that the paper claims; at toy scale, so of this data only",
    "opposite here": "significant, and on the other side; at toy scale, so of this data only",
    "not significant": "the 95 % interval over seeds contains 0, which is not evidence of equality",
    "equal": "the whole interval lies within 10 % of the value compared with, or every seed gives the same value",
    "reported": "a value without a verdict; the remark gives the reason",
    "not run": "not available at this size; the remark gives the reason",
    "higher": "significantly higher, where no paper claims anything",
    "lower": "significantly lower, where no paper claims anything",
}
"""Of what experiments show."""

SCALES = {
    "paper": "the paper's data, all of its images, its width (64) and its epochs (100 or more)",
    "reduced": "every training image of the paper's classes; a narrower network, fewer epochs or a copy of the images",
    "toy": "other data, or a part of the paper's",
}
"""How far a verdict of experiments reaches, the furthest first."""

JUDGED = ["verdict", "scale", "remark"]
"""The columns of a table that hold them."""

ON_TOYS = {"supported": "as claimed here", "contradicted": "opposite here"}
"""What the words that speak of a paper become at toy scale."""

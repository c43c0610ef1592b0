"""What the first cells of the notebooks on Ling et al. and Wu et al. say, for ``test_findings``.

Numbers of `STORED` are those of the tables in ``results/reference/sister-papers``; those of
`COMPUTED` take seconds.
"""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from nclib import paths
from nclib.papers import kernel_equivalence as ke
from nclib.papers import separation_bias as sb

EVIDENCE = re.compile(
    r"(?P<deq>\S+) \(\S+ to \S+\), best rival (?P<fnn>\S+) \(\S+ to \S+\); "
    r"difference (?P<difference>\S+) ± (?P<half>\S+)"
)
CONSTANT = 1 / 12
"""Mean squared error of a constant predictor on a sawtooth."""


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(paths.reference() / f"sister-papers/{name}-quick.csv", keep_default_na=False)


# --- Ling et al., ICML 2024 -----------------------------------------------------------------------


def ling_fig1() -> Iterator[str]:
    errors = table("ling-errors")
    left = errors[(errors["ratio"] == "p/n = 0.8") & (errors["tau0"] == "empirical")].set_index(
        "activation"
    )
    assert len(left) == 6 and set(errors["verdict"]) == {"supported"}
    assert set(left["error at n=800"].nlargest(2).index) == {"tanh", "erf"}
    least = 100 * left["error at n=800"].min()
    most = 100 * left["error at n=800"].max()
    yield f"it is {least:.0f} to {most:.0f} % of the kernel's norm"


def ling_fig2() -> Iterator[str]:
    published = ke.published_kernels("2").set_index("quantity")["value"]
    found = ke.matching_errors([800], range(3), published["sigma_a2"], published["p/n"])
    distance = 100 * found.groupby("network")["error"].mean()
    assert distance.filter(like="L-ReLU").max() < 0.01
    yield f"{distance['H-Tanh']:.1f} % for tanh and by less than 0.01 % for ReLU"
    yield f"{distance['Tanh, unmatched']:.0f} % and {distance['ReLU, unmatched']:.0f} %"


def ling_fig3() -> Iterator[str]:
    networks = table("ling-networks")
    significant = networks["verdict"] == "as claimed here"
    assert len(networks) == 4 and list(networks["DEQ"][significant]) == ["ReLU"]
    others = networks[~significant]
    assert set(others["verdict"]) == {"not significant"}
    assert others[["matched − DEQ", "plain − DEQ"]].max().max() < 1.2
    yield "one case of four"
    yield f"{-networks['difference'][significant].iloc[0]:.1f} percentage points closer"


def ling_ntk() -> Iterator[str]:
    sigma_a2 = ke.published_kernels("ntk").set_index("quantity")["value"]["sigma_a2"]
    found = ke.finite_width_errors(["relu", "tanh"], [2000], 3, sigma_a2=sigma_a2)
    distance = found.groupby(["estimate", "against"])["error"].mean()
    assert round(distance["ntk_full", "ntk"], 1) == 1.0
    yield f"within {100 * distance['ntk', 'ntk']:.0f} % of it"


def ling_spectra() -> Iterator[str]:
    published = ke.published_kernels("density").set_index(["data", "activation"])["value"][
        "gaussian mixture"
    ]
    x, labels, moments = ke.gaussian_mixture(800, 1000, 7)
    gaps = []
    for activation in ("relu", "tanh"):
        kernel = ke.implicit_ck(x, activation, 0.2)
        errors = []
        for convention in ("trace", "empirical"):
            tau0 = ke.resolve_tau0(x, labels, convention, moments)
            near = ke.equivalent(x, labels, moments, activation, 0.2, tau0)
            errors.append(ke.spectral_norm(ke.implicit_ck(x, activation, 0.2, tau0) - near))
        assert min(errors) < published[activation] < max(errors)
        exact = np.linalg.eigvalsh(kernel)
        gaps.append(np.abs(exact - np.linalg.eigvalsh(near)).max() / exact[-1])
    assert max(gaps) < 0.04
    yield "by more than 4 % of the largest one"
    yield f"{published['relu']:g} for ReLU and {published['tanh']:g} for tanh"


def ling_your_own_activation() -> Iterator[str]:
    def softplus(x):
        return np.logaddexp(0, x)

    yield f"{100 * ke.match_layers(softplus, 0.2).residual:.1f} % of the largest one"
    x, _, _ = ke.gaussian_mixture(800, 640)
    kernel = ke.implicit_ck(x, softplus, 0.2)
    matched = ke.match_layers(softplus, 0.2, ke.empirical_tau0(x)).layers

    def difference(layers):
        network, _ = ke.explicit_kernels(x, layers)
        return 100 * ke.spectral_norm(kernel - network) / ke.spectral_norm(kernel)

    yield f"differs from the DEQ's by {difference(matched):.1f} %"
    yield f"differs by {difference([softplus, softplus]):.0f} %"


# --- Wu et al., NeurIPS 2024 ----------------------------------------------------------------------


def trained(place: str, claim: str, verdict: str) -> dict[str, float]:
    """Means of the DEQ and of the best FNN in a row with this verdict, and their difference."""
    rows = table("wu-verdicts")
    (row,) = rows[(rows["place"] == place) & (rows["claim"] == claim)].to_dict("records")
    assert row["verdict"] == verdict
    return {
        name: float(value) for name, value in EVIDENCE.search(row["evidence"]).groupdict().items()
    }


def evidence(start: str) -> str:
    """Of the row whose claim begins so."""
    rows = table("wu-verdicts").set_index("claim")["evidence"]
    return rows[rows.index.str.startswith(start)].iloc[0]


def wu_fig1() -> Iterator[str]:
    sawtooth = trained("Figure 1a", "2^5: smaller error, equal parameters", "not significant")
    yield f"{sawtooth['deq']:.3f} against {sawtooth['fnn']:.3f}"
    trained("Figure 1d", "2^10: smaller error, equal parameters", "reported")
    for panel, d in (("b", 10), ("e", 20)):
        plain = trained(f"Figure 1{panel}", f"our g, d = {d}: smaller error, plain FNN", "lower")
        assert plain["fnn"] / plain["deq"] > 40
        trained(
            f"Figure 1{panel}",
            f"our g, d = {d}: smaller error, FNN with trained scales",
            "not significant",
        )
    yield "more than 40 times smaller"
    for panel, task in (("c", "f1"), ("f", "f2")):
        trained(f"Figure 1{panel}", f"our {task}: smaller error on the unseen", "not significant")


def wu_fig2() -> Iterator[str]:
    for task in ("f1", "f2"):
        denser = trained("Figure 2", f"our {task}: denser features than FNN 20×L3", "higher")
        yield f"{denser['deq']:.2f} against {denser['fnn']:.2f}"
        assert (
            trained("Figure 2", f"our {task}: denser features than FNN 20×L5", "higher")["fnn"]
            < denser["fnn"]
        )
        trained("Figure 2", f"our {task}: brighter heat map than FNN 20×L5", "higher")
        trained("Figure 2", f"our {task}: brighter heat map than FNN 20×L3", "not significant")


def wu_fig3() -> Iterator[str]:
    for power in (1, 3):
        trained("Figure 3", f"2^{power}: smaller error, free W", "not significant")
    last = trained("Figure 3", "2^15: smaller error, free W", "reported")
    assert np.allclose([last["deq"], last["fnn"]], CONSTANT, rtol=0.02)
    yield "every network stays at the error of a constant"


def wu_fig6() -> Iterator[str]:
    covered = re.search(r"coverage (\S+) ± (\S+)", evidence("Grad-CAM of the DEQ"))
    assert abs(float(covered[1])) < float(covered[2])
    yield "the interval of their difference contains 0"


def wu_table1() -> Iterator[str]:
    narrow = trained("Table 1", "2^5, width 10: smaller error, equal FLOPs", "reported")
    assert np.allclose([narrow["deq"], narrow["fnn"]], CONSTANT, rtol=0.05)
    eight = trained("Table 1", "2^3, width 10: smaller error, equal FLOPs", "higher")
    yield f"{eight['deq']:.2f} against {eight['fnn']:.6f}"
    wide = trained("Table 1, width 80", "2^5: smaller error, equal FLOPs", "not significant")
    assert round(wide["fnn"] / wide["deq"]) == 5
    yield "five times smaller"


def wu_audio() -> Iterator[str]:
    free = trained("App. B.2", "our sound: higher SNR, equal parameters, free W", "higher")
    yield f"{free['deq']:.1f} dB and the best FNN {free['fnn']:.1f} dB"
    trained("App. B.2", "our sound: higher SNR, equal FLOPs, free W", "not significant")
    solved = trained("App. B.2", "our sound: higher SNR, equal parameters, equilibrium", "lower")
    yield f"reaches {solved['deq']:.1f} dB"


def wu_theorem1() -> Iterator[str]:
    regions = sb.regions_table([*range(1, 11), 15])
    assert (regions["regions"] == 2.0 ** regions["m"]).all() and (
        regions["iterations"] <= regions["m"]
    ).all()
    yield r"$m=1,\dots,10$ and 15"


def wu_theorem2() -> Iterator[str]:
    steep = sb.steep_table(range(6, 21, 2), 0.05)
    assert (steep[["triangular_error", "scalar_error"]] <= 0.05 + 2e-4).all(axis=None)
    largest = steep[["triangular_weight", "scalar_weight"]].max(axis=None)
    yield f"weights stay at {largest:.0f} or below"
    yield f"grow to {steep['fnn_weight'].max():.0f}"
    deq, fnn, balanced = re.findall(r"×(\d+\.?\d*)", evidence("our g: the DEQ's weights stay"))
    yield f"{deq} times in the DEQ and {fnn} times in the FNN, or {balanced} times"


def wu_theorem3() -> Iterator[str]:
    flows = table("wu-verdicts").query("claim.str.startswith('gradient flow ends')")
    assert (
        set(flows["verdict"]) == {"holds"}
        and flows["evidence"].str.endswith("in 10 trials").sum() == 2
    )
    yield "twenty problems"
    dense = evidence("the bias of a diagonal DEQ is dense")
    deq = {
        float(start): float(value)
        for start, value in re.findall(r"β\(0\) = (\S+): (\d\.\d+)", dense)
    }
    network = {
        float(start): float(value) for value, start in re.findall(r"(\d\.\d+) \((\S+?)\)", dense)
    }
    assert {round(value / network[0.001]) for start, value in deq.items() if start >= 0.5} == {3}
    assert deq[0.1] < network[0.1]
    better = re.search(
        r"better in (\d) of (\d) cases, .* predicts in (\d);", evidence("our plain bias")
    )
    assert better[2] == better[3]
    yield f"smaller in {better[1]} of {better[2]} cases"


STORED: dict[str, Callable[[], Iterator[str]]] = {
    "kernel_equivalence/fig1": ling_fig1,
    "kernel_equivalence/fig3": ling_fig3,
    "separation_bias/fig1": wu_fig1,
    "separation_bias/fig2": wu_fig2,
    "separation_bias/fig3": wu_fig3,
    "separation_bias/fig6": wu_fig6,
    "separation_bias/table1": wu_table1,
    "separation_bias/audio": wu_audio,
    "separation_bias/theorem1_regions": wu_theorem1,
    "separation_bias/theorem2_steep": wu_theorem2,
    "separation_bias/theorem3_regulariser": wu_theorem3,
}
COMPUTED: dict[str, Callable[[], Iterator[str]]] = {
    "kernel_equivalence/fig2": ling_fig2,
    "kernel_equivalence/ntk": ling_ntk,
    "kernel_equivalence/spectra": ling_spectra,
    "kernel_equivalence/your_own_activation": ling_your_own_activation,
}

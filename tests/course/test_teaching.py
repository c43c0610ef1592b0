"""Right answers are right, every mistake is named, and pictures carry their words."""

import base64
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import stats

from nclib import comparison, metrics
from nclib.course import teaching
from nclib.course.teaching import EXERCISES, check_exercise
from nclib.deq import DEQ, Implicit, Unrolled
from nclib.metrics import simplex_etf
from nclib.solver import FixedPointIteration, fixed_point

MISTAKES = [(name, why) for name, exercise in EXERCISES.items() for why in exercise.mistakes]


# ---- the references, against the library or a closed form


def test_steps_needed_is_the_first_step_below_the_tolerance():
    for rho, start, tol in EXERCISES["01/steps"].cases:
        steps = EXERCISES["01/steps"].reference(rho, start, tol)
        assert start * rho**steps <= tol and (steps == 0 or start * rho ** (steps - 1) > tol)


def test_best_damping_beats_all_others_on_a_grid():
    for low, high in EXERCISES["01/damping"].cases:
        best = EXERCISES["01/damping"].reference(low, high)
        slopes, dampings = np.linspace(low, high, 41), np.linspace(0, 0.999, 1000)
        worst = np.abs(dampings[:, None] + (1 - dampings[:, None]) * slopes).max(axis=1)
        assert np.abs(best + (1 - best) * slopes).max() <= worst.min() + 1e-12


def test_anderson_weight_is_least_squares():
    for r_old, r_new in EXERCISES["02/weight"].cases:
        wanted = torch.linalg.lstsq((r_new - r_old).unsqueeze(1), r_new.unsqueeze(1)).solution.squeeze()
        torch.testing.assert_close(EXERCISES["02/weight"].reference(r_old, r_new), wanted)


def test_broyden_update_is_the_inverse_of_the_least_change_of_the_jacobian():
    for inverse, step, change in EXERCISES["02/broyden"].cases:
        jacobian = torch.linalg.inv(inverse)
        updated = jacobian + torch.outer(change - jacobian @ step, step) / (step @ step)
        found = EXERCISES["02/broyden"].reference(inverse, step, change)
        torch.testing.assert_close(found, torch.linalg.inv(updated))
        torch.testing.assert_close(found @ change, step)


def test_implicit_derivative_agrees_with_finite_differences():
    def solution(a):
        f = lambda z: torch.cos(a * z)  # noqa: E731
        return float(fixed_point(f, FixedPointIteration(1e-14, 2000, 0.3), torch.zeros(1, 1).double()).value)

    for a in (1.0, 0.5, -0.4):
        wanted = (solution(a + 1e-5) - solution(a - 1e-5)) / 2e-5
        assert EXERCISES["03/scalar"].reference(solution(a), a) == pytest.approx(wanted, rel=1e-6)


def test_truncated_adjoint_tends_to_the_solution():
    jacobian, g, _ = EXERCISES["03/neumann"].cases[0]
    wanted = torch.linalg.solve(torch.eye(len(g)).double() - jacobian.T, g)
    torch.testing.assert_close(EXERCISES["03/neumann"].reference(jacobian, g, 400), wanted)


def test_relative_residual_is_the_solvers():
    z = torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    solution = fixed_point(torch.cos, FixedPointIteration(1e-12, 1), z)
    torch.testing.assert_close(EXERCISES["04/residual"].reference(z, z.cos()), solution.residual)


def test_contractive_weights_have_the_radius_or_are_left_alone():
    for weight, radius in EXERCISES["04/contractive"].cases:
        found = EXERCISES["04/contractive"].reference(weight, radius)
        norm = torch.linalg.matrix_norm(weight, 2)
        assert torch.linalg.matrix_norm(found, 2) == pytest.approx(min(radius, norm))
        assert norm > radius or torch.equal(found, weight)


def test_etf_cosines_and_trace_ratio_are_the_librarys():
    for (k,) in EXERCISES["05/cosines"].cases:
        v = simplex_etf(k, k)
        torch.testing.assert_close(EXERCISES["05/cosines"].reference(k), v @ v.T)
    for h, labels in EXERCISES["05/nc1"].cases:
        wanted = metrics.nc1_trace_ratio(metrics.class_moments(h, labels, int(labels.max()) + 1))
        assert float(EXERCISES["05/nc1"].reference(h, labels)) == pytest.approx(wanted)


def test_etf_distance_and_mismatch_are_the_librarys():
    for (means,) in EXERCISES["06/etf_distance"].cases:
        wanted = metrics.nc2_etf_distance(means - means.mean(0))
        assert float(EXERCISES["06/etf_distance"].reference(means)) == pytest.approx(wanted)
    for h, labels, logits in EXERCISES["06/mismatch"].cases:
        moments = metrics.class_moments(h, labels, logits.shape[1])
        wanted = metrics.nc4_ncc_mismatch(h, logits, moments)
        assert float(EXERCISES["06/mismatch"].reference(h, labels, logits)) == pytest.approx(wanted)
        assert 0 < wanted < 1


def test_step_counts_are_the_nearest_whole_numbers():
    for num_classes, n_max, num_majority, ratio in EXERCISES["07/counts"].cases:
        found = EXERCISES["07/counts"].reference(num_classes, n_max, num_majority, ratio).tolist()
        assert found[:num_majority] == [n_max] * num_majority and len(found) == num_classes
        assert all(n >= 1 and (n == 1 or abs(n - n_max / ratio) <= 0.5) for n in found[num_majority:])


def test_minority_cosine_is_the_librarys_and_blind_to_the_number_of_samples():
    for h, labels, minority in EXERCISES["07/cosine"].cases:
        found = float(EXERCISES["07/cosine"].reference(h, labels, minority))
        means = metrics.class_moments(h, labels, len(minority)).centred_means
        assert found == pytest.approx(metrics.minority_cosine(means, minority))
        more = torch.cat([labels == 0, torch.ones_like(labels).bool()])  # the first class twice over
        twice, again = torch.cat([h, h])[more], torch.cat([labels, labels])[more]
        assert float(EXERCISES["07/cosine"].reference(twice, again, minority)) == pytest.approx(found)


def test_paired_interval_and_verdict_follow_the_librarys_rules():
    for deq, explicit, t in EXERCISES["08/interval"].cases:
        wanted = comparison.interval(deq - explicit)
        assert t == pytest.approx(stats.t.ppf(0.975, len(deq) - 1), rel=1e-6)
        assert EXERCISES["08/interval"].reference(deq, explicit, t) == pytest.approx((wanted.mean, wanted.half))
    words = {"supported": 1, "contradicted": -1, "not significant": 0}
    for mean, half, claim in EXERCISES["08/verdict"].cases:
        said = comparison.verdict(comparison.Interval(mean, half, 3), "paper", "higher" if claim == 1 else "lower")
        assert EXERCISES["08/verdict"].reference(mean, half, claim) == words[said.word]


# ---- feedback


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes_and_a_stub_is_not_solved_yet(name):
    assert check_exercise(name, EXERCISES[name].reference).right is True
    for stub in (lambda *_: None, lambda *_: ...):
        feedback = check_exercise(name, stub)
        assert feedback.right is None and "Not solved yet" in feedback.text


@pytest.mark.parametrize(("name", "why"), MISTAKES)
def test_each_mistake_is_wrong_and_named_alone(name, why):
    feedback = check_exercise(name, EXERCISES[name].mistakes[why])
    assert feedback.right is False
    assert [w for w in EXERCISES[name].mistakes if w in feedback.text] == [why]


def test_any_other_answer_is_shown_beside_the_right_one():
    feedback = check_exercise("01/steps", lambda rho, start, tol: 7)
    assert feedback.right is False and "rho = 0.5" in feedback.text and "returned 7; wanted is 10" in feedback.text
    assert str(feedback) == feedback._repr_markdown_() == feedback.text


def test_errors_wrong_types_and_shapes_are_told_not_raised():
    def broken(rho, start, tol):
        return 1 / 0

    assert "ZeroDivisionError" in check_exercise("01/steps", broken).text
    assert "returned 'ten'; numbers are wanted" in check_exercise("01/steps", lambda *_: "ten").text
    assert "an array of shape (2,)" in check_exercise("01/steps", lambda *_: np.ones(2)).text
    assert "a single number" in check_exercise("05/cosines", lambda k: 1.0).text
    some = check_exercise("01/steps", lambda rho, start, tol: 10 if rho == 0.5 else None)
    assert some.right is False and "returned nothing" in some.text


def test_answers_may_carry_gradients_and_cannot_spoil_the_cases():
    def in_place(weight, radius):
        norm = float(torch.linalg.matrix_norm(weight, 2))
        return torch.nn.Parameter(weight.mul_(min(1.0, radius / norm)))

    assert check_exercise("04/contractive", in_place).right and check_exercise("04/contractive", in_place).right


def test_an_unknown_exercise_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean '01/steps'"):
        check_exercise("01/step", print)


# ---- pictures and prose


def test_a_picture_is_html_with_its_words_and_can_still_be_saved(tmp_path):
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([1, 2])
    shown = teaching.picture(fig, 'Rising line, "steep" <b>\n  and straight.')
    page = shown._repr_html_()
    assert 'alt="Rising line, &quot;steep&quot; &lt;b&gt; and straight."' in page and "\n" not in page
    assert base64.b64decode(re.search(r"base64,([^\"]+)", page).group(1)).startswith(b"\x89PNG")
    assert shown.width == 288 and "PNG" not in repr(shown)
    assert fig.number not in plt.get_fignums()
    fig.savefig(tmp_path / "later.png")
    with pytest.raises(ValueError, match="alt is empty"):
        teaching.picture(fig, " ")


def test_prose_is_markdown_and_still_text():
    assert teaching.prose("**3**")._repr_markdown_() == "**3**" == f"{teaching.prose('**3**')}"


# ---- memory


def test_saved_bytes_counts_a_storage_once_and_forgets_released_graphs():
    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    assert teaching.saved_bytes(lambda: (x * x).sum().backward()) == 800
    assert teaching.saved_bytes(lambda: (x * x).sum().backward(), apart_from=[x]) == 0
    assert teaching.saved_bytes(lambda: x.exp().exp().sum().backward()) == 1600  # exp keeps its value

    def one_after_the_other():
        for _ in range(5):
            x.exp().sum().backward()

    assert teaching.saved_bytes(one_after_the_other) == 800


def test_unrolling_keeps_a_state_for_each_step_and_the_implicit_gradient_none():
    weight = torch.nn.Parameter(0.3 * torch.eye(4))

    def used(gradient, steps):
        layer = DEQ(lambda z, x: torch.tanh(z @ weight + x), FixedPointIteration(1e-12, steps), gradient, z0="zeros")
        layer.warn_backward = False
        return teaching.saved_bytes(lambda: layer(torch.ones(8, 4))[0].sum().backward(), apart_from=[weight])

    state = 8 * 4 * 4
    assert used(Unrolled(30), 1) - used(Unrolled(20), 1) == 10 * state
    assert used(Implicit(), 30) == used(Implicit(), 20) <= 4 * state

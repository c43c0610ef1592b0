"""A stored run as it is read, and its numbers as tidy tables.

Nothing that lies in a store is executed: arrays are read without pickles, weights with ``weights_only``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from nclib.config import ConfigError, RunConfig
from nclib.config.parts import setting

if TYPE_CHECKING:
    from nclib.models import Classifier

HISTORY = ["epoch", "split", "metric", "value"]
_COLUMNS = {
    "dataset": "data.dataset",
    "model": "model.kind",
    "setting": "data.imbalance",
    "K_A": "data.num_majority",
    "R": "data.ratio",
}
FRAME_COLUMNS = [
    *("run_id", "profile", "dataset", "model", "setting", "K_A", "R", "seed", "protocol"),
    *("split", "epoch", "metric", "value"),
]


# from pandas 3.1 on, every number is read exactly and the option is deprecated
_EXACT = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}


if torch.__version__ < (2, 10):  # CVE-2025-32434, CVE-2026-24747: there ``weights_only`` does not hold
    raise ImportError(f"stored runs need torch 2.10 or newer, and this is {torch.__version__}; install it")


class CorruptRun(RuntimeError):
    """A stored run or checkpoint whose content is not what was written; the message names it and what is wrong."""

    exit_code = 1


@dataclass(frozen=True)
class StoredRun:
    """A finished run. Its tables (always "history": epoch, split, metric, value), arrays, weights and provenance are
    read and checked when they are first asked for; a damaged one raises `CorruptRun` then.

    Parameters
    ----------
    run_id, config : its name and its plain configuration
    names : of its files
    read : returns what is in the file of a name
    """

    run_id: str
    config: dict[str, Any]
    names: tuple[str, ...]
    read: Callable[[str], Any]

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {name.removesuffix(".csv"): self.read(name) for name in self.names if name.endswith(".csv")}

    @property
    def history(self) -> pd.DataFrame:
        return self.read("history.csv")

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.read("arrays.npz")

    @property
    def provenance(self) -> dict[str, Any]:
        return self.read("provenance.json")

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        if "weights.pt" not in self.names:
            raise CorruptRun(
                f"run {self.run_id} is known from the reference results alone, which keep no weights; "
                "nclib.ensure_runs([config]) trains it here"
            )
        return self.read("weights.pt")

    def network(self, code: str | None = None) -> Classifier:
        """The trained network of a classifier, on the CPU and in evaluation mode.

        Parameters
        ----------
        code : of a run with a cell or network of your own its name, such as "my_cells:MyCell". A stored run imports no
            code unless you name it

        Returns
        -------
        Classifier
            Called with normalised images (B, C, H, W), it returns logits, features and, of a DEQ, its solution.

        Raises
        ------
        ConfigError
            Where the run has no network, or code of your own that `code` does not name.
        OwnCodeError
            Where that code has changed since.
        CorruptRun
            Where the weights are damaged, or the run is one of the reference results, which have none.

        Examples
        --------
        >>> import torch
        >>> import nclib as nc
        >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
        >>> config = nc.RunConfig(data=data, model=nc.ModelConfig(width=2), train=nc.TrainConfig(epochs=1))
        >>> frame = nc.ensure_runs([config])
        >>> nc.load_run(config).network()(torch.zeros(3, 1, 8, 8)).logits.shape
        torch.Size([3, 10])
        """
        from nclib import training

        if self.config["kind"] != "classifier":
            raise ConfigError(f"run {self.run_id} has no network: it is of kind {self.config['kind']!r}")
        config = RunConfig(**self.config)
        if config.model.own_code != code:
            raise ConfigError(
                f"run {self.run_id} has no code of your own; leave {code!r} out"
                if config.model.own_code is None
                else f"a stored run imports no code, and this one has some. If you trust it, name it: "
                f"network({config.model.own_code!r})"
            )
        return training.trained(config, self.weights).eval()


# --- what is in a file ----------------------------------------------------------------------------------------------


def parse(name: str, content: bytes) -> Any:
    """What is in a file of a run: a table, arrays, weights or a record.

    Raises
    ------
    CorruptRun
        Where it is something else.
    """
    try:
        if name.endswith(".npz"):
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                return {array: stored[array] for array in stored.files}
        if name.endswith(".pt"):
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if name.endswith(".csv"):
            table = read_csv(io.BytesIO(content))
            if name == "history.csv":
                table[HISTORY].astype({"epoch": float, "value": float})  # raises for a table that is not a history
            return table
        return dict(json.loads(content))
    except Exception as error:  # NumPy, pandas and torch raise anything
        raise CorruptRun(f"it cannot be read ({type(error).__name__}: {error})") from None


def read_csv(source: Any) -> pd.DataFrame:
    """A table with every float exactly as it was written."""
    return pd.read_csv(source, **_EXACT)


# --- tidy tables ----------------------------------------------------------------------------------------------------


def dotted(config: Mapping[str, Any], key: str) -> Any:
    """The option at a dotted key of a plain configuration; None where it is absent."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def identity_columns(config: Mapping[str, Any]) -> dict[str, Any]:
    """dataset (without a folder's fingerprint), model, setting ("balanced", "KA3-R10"; never missing, so groupby
    keeps all), K_A, R (1 for balanced) and seed of a plain configuration; None where a configuration has no such thing.
    A configuration that builds on another run has those of its base."""
    facts = {name: dotted(config.get("base", config), key) for name, key in _COLUMNS.items()}
    facts["setting"] = setting(facts["setting"], facts["K_A"], facts["R"])
    if facts["dataset"] is not None:
        facts |= {"dataset": facts["dataset"].split("@")[0], "R": facts["R"] or 1.0}
    return facts | {"seed": config.get("seed", 0)}


def protocol(config: Mapping[str, Any]) -> str | None:
    """How a run was made, apart from its setting, its seed and what tells two networks apart: version and number of
    images, width, training, as JSON. Runs that are compared must agree in it (`nclib.pairs`). None for other kinds."""
    config = config.get("base", config)
    if config.get("kind") != "classifier":
        return None
    kept = {f"model.{name}": config["model"].get(name) for name in ("width", "feature_norm", "head")}
    for part, left_out in _NOT_SHARED.items():
        kept |= {f"{part}.{name}": value for name, value in config[part].items() if name not in left_out}
    return json.dumps({name: value for name, value in kept.items() if value is not None}, separators=(",", ":"))


_NOT_SHARED = {"data": ("imbalance", "num_majority", "ratio"), "train": ("log_every", "jacobian_reg", "nc_on_test")}
"""What belongs to the setting, to the evaluation or to one network alone."""


def tidy(run: StoredRun, columns: Sequence[str] = ()) -> pd.DataFrame:
    """The history of a run as tidy rows (`FRAME_COLUMNS` and the requested dotted keys)."""
    facts = {"run_id": run.run_id, "profile": run.provenance.get("profile", "custom"), **identity_columns(run.config)}
    facts["model"] = run.provenance.get("model") or facts["model"]
    facts |= {"protocol": protocol(run.config)} | {key: dotted(run.config, key) for key in columns}
    return run.history.assign(**facts)[[*FRAME_COLUMNS, *columns]]


def stack(frames: list[pd.DataFrame], columns: Sequence[str] = ()) -> pd.DataFrame:
    """Tidy frames one after the other; no frames give an empty table with the right columns."""
    filled = [frame.astype({"K_A": "Float64", "R": "Float64"}) for frame in frames]
    if not filled:
        return pd.DataFrame(columns=[*FRAME_COLUMNS, *columns])
    return pd.concat(filled, ignore_index=True)

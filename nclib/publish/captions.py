"""What captions state about runs: data, network, protocol, seeds, and how far verdicts on them reach."""

from collections import Counter
from collections.abc import Sequence

from nclib.config import DataConfig, RunConfig, TrainConfig
from nclib.profiles import class_counts, outline


def stand_ins(configs: Sequence[RunConfig]) -> dict[str, str]:
    """Which of the paper's data sets each of these stands for, by its number of classes.

    Parameters
    ----------
    configs : of any runs

    Returns
    -------
    dict
        Such as {"digits": "cifar10"}.

    Examples
    --------
    >>> import nclib as nc
    >>> nc.publish.notes.stand_ins(nc.experiment("fig3", "smoke"))
    {'digits': 'cifar10'}
    """
    papers, found = {10: "cifar10", 100: "cifar100"}, {}
    for name in sorted({config.data.dataset for config in configs}):
        if (classes := outline(name).classes) in papers:
            found[name.split("@")[0]] = papers[classes]
    return found


def describe_runs(configs: Sequence[RunConfig]) -> str:
    """One paragraph for captions: profile, data with the real n_A and n_B, test images, network, protocol, seeds.

    Parameters
    ----------
    configs : of the runs that are shown

    Returns
    -------
    str

    Examples
    --------
    >>> import nclib as nc
    >>> "digits" in nc.publish.notes.describe_runs(nc.experiment("fig3", "smoke"))
    True
    """
    configs = [config for config in configs if isinstance(config, RunConfig)]
    first, train = configs[0], configs[0].train
    settings = dict.fromkeys(_describe_data(config.data) for config in configs)
    tested = dict.fromkeys(_describe_test(config.data) for config in configs)
    counts = _seeds_of_settings(configs)
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    unchanged = " without augmentation" * all(config.data.augment == "none" for config in configs)
    network = f"ResNet-18 of width {first.model.width}"
    own = sorted({config.model.own_cell for config in configs if config.model.own_cell})
    network += f" with {' and '.join(own)}" * bool(own)
    optimisers = dict.fromkeys(_describe_optimiser(config.train) for config in configs)
    return (
        f"Profile {first.profile}: {'; '.join(settings)}. Tested on {' and '.join(tested)}. {network}, "
        f"{train.epochs} epochs of {' or '.join(optimisers)}{unchanged}, "
        f"{seeds} seed{'s' if seeds != '1' else ', so no s.d. over seeds'}."
    )


def describe_seeds(configs: Sequence[RunConfig], spread: str = "95 % t-intervals") -> str:
    """For captions, what is plotted or listed of these seeds: "means over seeds with 95 % t-intervals", or of a single
    one "values of one seed, so without 95 % t-intervals".

    Parameters
    ----------
    configs : of the runs that are shown
    spread : what is plotted around the means, a plural

    Returns
    -------
    str

    Examples
    --------
    >>> import nclib as nc
    >>> nc.publish.notes.describe_seeds(nc.experiment("fig3", "smoke", seeds=3))
    'means over seeds with 95 % t-intervals'
    """
    several = max(_seeds_of_settings(configs)) > 1
    return f"means over seeds with {spread}" if several else f"values of one seed, so without {spread}"


def _seeds_of_settings(configs: Sequence[RunConfig]) -> set[int]:
    """The numbers of seeds that settings have."""
    seeds = {((c.data.dataset, c.data.imbalance, c.data.num_majority, c.data.ratio), c.seed) for c in configs}
    return set(Counter(setting for setting, _ in seeds).values())


def _describe_optimiser(train: TrainConfig) -> str:
    rates = f"lr {train.lr:g}, {train.schedule}, batch {train.batch_size}, weight decay {train.weight_decay:g}"
    return f"{ {'sgd': 'SGD', 'adam': 'Adam', 'adamw': 'AdamW'}[train.optimiser] } ({rates})"


def _data_name(dataset: str) -> str:
    """A data set as sentences name it: without the fingerprint; images read from a folder are named as such."""
    name = dataset.split("@")[0]
    return f"the image folder {name.removeprefix('folder:')}" if name.startswith("folder:") else name


def _describe_test(images: DataConfig) -> str:
    least, most = (images.test_per_class,) * 2 if images.test_per_class else outline(images.dataset).test or (0, 0)
    number = f"{least} images" if least == most else f"{least} to {most} images"
    return f"{number if most else 'all test images'} of each class of {_data_name(images.dataset)}"


def _describe_data(images: DataConfig) -> str:
    name, about = _data_name(images.dataset), outline(images.dataset)
    n_max = images.n_max or about.per_class
    if images.imbalance == "balanced":
        return f"{name} balanced ({about.classes} classes, {n_max} training images each)"
    smallest = int(class_counts(images).min())
    kind = f"K_A = {images.num_majority} of" if images.imbalance == "step" else "exponential over"
    real = n_max / smallest
    note = "" if abs(real / images.ratio - 1) < 0.01 else f", in fact R = {real:.4g}"
    if smallest == 1:
        note += ", and a class of one image has no within-class variance"
    return f"{name} with {kind} {about.classes} classes, R = {images.ratio:g} (n_A = {n_max}, n_B = {smallest}{note})"

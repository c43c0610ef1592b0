"""Data sets, folders, downloads, batches: what is read is what was written, and nothing unverified is."""

import hashlib
import io
import itertools
import os
import pickle
import shutil
import sys
import tarfile
import types

import numpy as np
import pytest
import torch
from PIL import Image

from nclib import data, paths
from nclib.config import ConfigError, DataConfig


@pytest.fixture(autouse=True)
def data_root(tmp_path, monkeypatch):
    """Every test has a data root of its own, below which everything must happen."""
    monkeypatch.setenv("NCLIB_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


def test_digit_pairs_never_share_a_half_between_train_and_test():
    halves = {split: data.load_dataset("digits", split) for split in data.SPLITS}
    pool = {
        split: [{bytes(i.numpy()) for i in d.images[d.labels == k]} for k in range(10)]
        for split, d in halves.items()
    }
    for split, per_class in (("train", 100), ("test", 20)):
        pairs = data.load_dataset("digit_pairs", split)
        assert pairs.counts.tolist() == [per_class] * 100 and pairs.class_names[37] == "37"
        assert len({bytes(i.numpy()) for i in pairs.images}) == len(pairs.images), (
            "pairs are distinct"
        )
        for image, label in zip(pairs.images, pairs.labels.tolist(), strict=True):
            assert bytes(image[..., :8].contiguous().numpy()) in pool[split][label // 10]
            assert bytes(image[..., 8:].contiguous().numpy()) in pool[split][label % 10]


def test_embedded_sets_are_the_same_on_every_machine():
    """A change here changes what every stored quick run was trained on: raise SCHEMA_VERSION with it."""
    digest = {}
    for name in ("digits", "digit_pairs", "digit_scenes"):
        for split in data.SPLITS:
            images = data.load_dataset(name, split).images.contiguous().numpy()
            digest[f"{name}/{split}"] = hashlib.sha256(images).hexdigest()[:12]
    assert digest == {
        "digits/train": "1642238c89a4",
        "digits/test": "a45ebf7f6ea9",
        "digit_pairs/train": "fdea98b28832",
        "digit_pairs/test": "7188ebcde472",
        "digit_scenes/train": "a5353ab9137e",
        "digit_scenes/test": "605a9ed15f9c",
    }


def tree(folder, images):
    """Write {"train/cat/a.png": array or PIL image or bytes} as files."""
    for name, content in images.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            (Image.fromarray(content) if isinstance(content, np.ndarray) else content).save(path)
    return folder


def colours(seed=0, size=(6, 5), number=3, channels=3):
    """Random images of two classes, by file name."""
    stream = np.random.default_rng(seed)
    shape = (*size, 3) if channels == 3 else size
    names = [
        f"{s}/{c}/{i}.png" for s in ("train", "test") for c in ("cat", "ant") for i in range(number)
    ]
    return {name: stream.integers(0, 256, shape, dtype=np.uint8) for name in names}


def test_folder_gives_back_the_pixels_in_the_order_of_names(tmp_path):
    images = colours()
    name = data.resolve_dataset(f"folder:{tree(tmp_path / 'pets', images)}")
    for split in data.SPLITS:
        read = data.load_dataset(name, split)
        written = [images[f"{split}/{c}/{i}.png"] for c in ("ant", "cat") for i in range(3)]
        assert np.array_equal(read.images.permute(0, 2, 3, 1).numpy(), np.stack(written))
        assert read.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert (read.class_names, read.augment, read.name) == (("ant", "cat"), "flip_crop", name)


def test_fingerprint_is_of_the_content_alone(tmp_path):
    images = colours()
    name = data.resolve_dataset(f"folder:{tree(tmp_path / 'pets', images)}")
    again = tree(tmp_path / "elsewhere" / "pets", dict(reversed(images.items())))
    for path in again.rglob("*.png"):
        os.utime(path, (1, 1))
    (again / "train" / "cat" / ".hidden").write_text("ignored")
    assert data.resolve_dataset(f"folder:{again}") == name
    assert name.startswith("folder:pets@") and len(name) == len("folder:pets@") + 12

    changed = images | {"test/ant/0.png": images["test/ant/0.png"] ^ 1}
    renamed = {key.replace("cat", "cow"): value for key, value in images.items()}
    others = [
        data.resolve_dataset(f"folder:{tree(tmp_path / n / 'pets', t)}")
        for n, t in (("a", changed), ("b", renamed))
    ]
    assert len({name, *others}) == 3


def test_a_configuration_takes_the_resolved_name_and_no_path(tmp_path):
    folder = tree(tmp_path / "my pets [1]", colours())
    name = data.resolve_dataset(f"folder:{folder}")
    assert name.startswith("folder:my-pets-1@") and DataConfig(dataset=name).dataset == name
    with pytest.raises(ConfigError, match="resolve_dataset"):
        DataConfig(dataset=f"folder:{folder}")
    with pytest.raises(data.DataError, match="nowhere does not exist"):
        data.resolve_dataset("folder:nowhere", base=tmp_path)


def test_resolved_name_needs_no_folder_any_more(tmp_path, monkeypatch):
    folder = tree(tmp_path / "pets", colours())
    name = data.resolve_dataset(f"folder:{folder}")
    shutil.rmtree(folder)
    assert data.resolve_dataset(name) == name
    assert len(data.load_dataset(name, "test").images) == 6
    monkeypatch.setenv("NCLIB_DATA", str(tmp_path / "another root"))
    with pytest.raises(data.DataError, match="nclib data fetch folder:PATH"):
        data.load_dataset(name, "train")


def test_a_damaged_cache_is_never_read_and_made_again_from_its_folder(tmp_path):
    folder = tree(tmp_path / "pets", colours())
    name = data.resolve_dataset(f"folder:{folder}")
    whole, content = data.load_dataset(name, "train"), data.cache_file(name).read_bytes()
    for damaged in (content[:-10], content[:200] + bytes([content[200] ^ 1]) + content[201:]):
        data.cache_file(name).write_bytes(damaged)
        with pytest.raises(
            data.DataError, match=r"are missing or damaged in .*; run `nclib data fetch"
        ):
            data.load_dataset(name, "train")
        assert data.fetch(f"folder:{folder}") == name
        assert torch.equal(data.load_dataset(name, "train").images, whole.images)


def test_folders_in_a_class_count_also_where_they_are_links(tmp_path):
    folder = tree(
        tmp_path / "pets", colours() | {"elsewhere/more/0.png": np.zeros((6, 5, 3), np.uint8)}
    )
    (folder / "train/cat/linked").symlink_to(folder / "elsewhere")
    assert data.load_dataset(f"folder:{folder}", "train").counts.tolist() == [3, 4]


def only_size(tmp_path, images):
    return data.load_dataset(f"folder:{tree(tmp_path / 'f', images)}", "train").images


@pytest.mark.parametrize(("size", "kept"), [((64, 20), (64, 20)), ((66, 130), (64, 64))])
def test_one_size_up_to_64_is_kept_and_larger_images_become_a_square(tmp_path, size, kept):
    assert only_size(tmp_path, colours(size=size, number=1)).shape == (2, 3, *kept)


def test_mixed_sizes_take_the_median_short_side_of_the_training_images(tmp_path):
    sizes = iter([(10, 30), (12, 12), (40, 20), (90, 90), (11, 11), (50, 50)])
    images = {}
    for split in data.SPLITS:
        for name in ("cat/0", "cat/1", "ant/0"):
            images[f"{split}/{name}.png"] = np.full((*next(sizes), 3), (1, 2, 3), np.uint8)
    assert only_size(tmp_path, images).shape == (3, 3, 12, 12)


def test_scaling_keeps_the_centre(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = (200, 100, 50)  # only this square is kept
    kept = only_size(tmp_path, colours(size=(10, 10), number=1) | {"train/ant/0.png": wide})[0]
    assert kept.flatten(1).unique(dim=1).flatten().tolist() == [200, 100, 50]


def test_grey_only_if_every_pixel_of_every_image_is_grey(tmp_path):
    grey = colours(channels=1)
    as_rgb = {name: np.repeat(image[..., None], 3, axis=2) for name, image in grey.items()}
    for number, images in enumerate(
        (grey, as_rgb, grey | {"test/cat/0.png": as_rgb["test/cat/0.png"]})
    ):
        dataset = data.load_dataset(f"folder:{tree(tmp_path / str(number), images)}", "train")
        assert dataset.images.shape == (6, 1, 6, 5) and dataset.augment == "none"
        assert np.array_equal(dataset.images[0, 0].numpy(), grey["train/ant/0.png"])
    as_rgb["test/cat/0.png"][0, 0, 0] ^= 255
    assert data.load_dataset(f"folder:{tree(tmp_path / 'c', as_rgb)}", "train").images.shape[1] == 3


def saved(image, kind="png", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_transparency_lies_on_white_and_images_stand_upright(tmp_path):
    clear = np.zeros((6, 5, 4), np.uint8)
    clear[0] = (10, 20, 30, 255)  # first row opaque, the rest transparent
    palette = Image.fromarray(np.full((6, 5, 3), (255, 0, 0), np.uint8)).quantize(4)
    turned = Image.fromarray(
        np.repeat(np.arange(30, dtype=np.uint8).reshape(5, 6)[..., None], 3, 2)
    )
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side: to be turned clockwise
    made = {
        "train/ant/0.png": clear,
        "train/ant/1.png": palette,
        "train/ant/2.png": saved(turned, exif=exif),
    }
    transparent, red, upright = only_size(tmp_path, colours() | made)[:3]
    assert transparent[:, 0, 0].tolist() == [10, 20, 30] and transparent[
        :, 1:
    ].unique().tolist() == [255]
    assert red[:, 3, 3].tolist() == [255, 0, 0]
    assert np.array_equal(upright[0].numpy(), np.rot90(np.arange(30).reshape(5, 6), -1))


def png(size=(6, 5)):
    return saved(
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    )


GOOD = {f"{split}/{name}/0.png": png() for split in ("train", "test") for name in ("ant", "cat")}

DEEP = saved(Image.fromarray(np.arange(30).reshape(5, 6).astype(np.uint16)))
BAD_TREES = {
    "one class": ({k: v for k, v in GOOD.items() if "ant" in k}, "two or more classes"),
    "classes differ": (GOOD | {"train/dog/0.png": png()}, "test/dog has no files"),
    "class without a file": (GOOD | {"train/ant/.0.png": png(), "train/ant/0.png": None}, "train/ant has no files"),
    "not images": (
        GOOD | {f"train/ant/{i}.txt": b"text" for i in range(7)}, r"7 file\(s\) .* not images in BMP, .*ant/4.txt .* …"
    ),
    "cut off": (GOOD | {"test/cat/1.png": png((50, 50))[:3000]}, r"are damaged .*: test/cat/1.png \(OSError"),
    "more than 8 bits": (GOOD | {"train/ant/1.png": DEEP}, "train/ant/1.png .*more than 8 bits a pixel"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TREES)
def test_a_bad_folder_is_refused_whole(tmp_path, case):
    files, message = BAD_TREES[case]
    folder = tmp_path / "pets"
    folder.mkdir()
    tree(folder, {name: content for name, content in files.items() if content is not None})
    with pytest.raises(data.DataError, match=message):
        data.resolve_dataset(f"folder:{folder}")
    assert not list(paths.data().glob("cache/*.npz")), "nothing of a refused folder is kept"


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A small CIFAR-10 in its real format, which torchvision takes for the original; returns the archive."""
    kind = pytest.importorskip("torchvision.datasets").CIFAR10
    # torchvision wants to know a length that addresses of files do not tell
    copy = lambda url, path, *rest: shutil.copyfile(url.removeprefix("file://"), path)  # noqa: E731
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", copy)
    stream = np.random.default_rng(0)
    files = {}
    for name, _ in [*kind.train_list, *kind.test_list]:
        images = stream.integers(0, 256, (20, 3072), dtype=np.uint8)
        files[name] = pickle.dumps({"data": images, "labels": [i % 10 for i in range(20)]})
    files["batches.meta"] = pickle.dumps({"label_names": [f"class {k}" for k in range(10)]})
    archive = tmp_path / "server" / kind.filename
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in {**files, "readme.html": b"not wanted"}.items():
            member = tarfile.TarInfo(f"{kind.base_folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    for names in ("train_list", "test_list"):
        listed = [[name, hashlib.md5(files[name]).hexdigest()] for name, _ in getattr(kind, names)]
        monkeypatch.setattr(kind, names, listed)
    monkeypatch.setattr(
        kind, "meta", kind.meta | {"md5": hashlib.md5(files["batches.meta"]).hexdigest()}
    )
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(kind, "url", archive.as_uri())
    return archive


class Marks(str):
    """A pickle that makes a folder of this name when it is opened."""

    def __reduce__(self):
        return os.mkdir, (str(self),)


def test_cifar_is_fetched_verified_and_read(cifar):
    train, test = data.load_dataset("cifar10", "train"), data.load_dataset("cifar10", "test")
    assert (
        train.images.shape == (100, 3, 32, 32)
        and train.images.is_contiguous()
        and train.augment == "flip_crop"
    )
    with tarfile.open(cifar) as tar:
        first = pickle.load(tar.extractfile("cifar-10-batches-py/data_batch_1"))
    assert np.array_equal(
        train.images[:20].flatten(1).numpy(), first["data"]
    )  # planes: red, green, blue
    assert train.labels[:20].tolist() == first["labels"] and test.counts.tolist() == [2] * 10
    assert train.class_names[3] == "class 3"


def test_changed_pickle_is_never_opened(cifar, tmp_path):
    data.fetch("cifar10")
    batch, mark = paths.data() / "cifar-10-batches-py" / "data_batch_2", tmp_path / "mark"
    batch.write_bytes(pickle.dumps(Marks(mark)))
    assert len(data.load_dataset("cifar10", "train").images) == 100, (
        "unpacked again from the verified archive"
    )
    batch.write_bytes(pickle.dumps(Marks(mark)))
    cifar.unlink()
    (paths.data() / cifar.name).write_bytes(b"half a downlo")
    with pytest.raises(
        data.DataError, match=r"cannot get cifar10 .* are used\. Without a network: dataset=digits"
    ):
        data.load_dataset("cifar10", "train")
    assert not mark.exists()
    pickle.loads(batch.read_bytes())
    assert mark.exists(), "the file was one that leaves a mark"


def test_grey_originals_get_their_channel(monkeypatch):
    grey = np.random.default_rng(1).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    source = types.SimpleNamespace(
        data=torch.from_numpy(grey), targets=torch.arange(30) % 3, classes=["0 - zero", "1"]
    )
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda *asked, **options: source)
    read = data.load_dataset("mnist", "test")
    assert np.array_equal(read.images[:, 0].numpy(), grey) and read.images.shape == (30, 1, 28, 28)
    assert (read.class_names, read.augment, read.labels.dtype) == (("0", "1"), "none", torch.int64)


def test_without_torchvision_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(data.DataError, match="pip install torchvision"):
        data.load_dataset("cifar10", "train")


def test_digits_are_counted_by_class():
    train, test = data.load_dataset("digits", "train"), data.load_dataset("digits", "test")
    assert train.counts.tolist() == [138, 142, 137, 143, 141, 142, 141, 139, 134, 140]
    assert test.counts.tolist() == [40] * 10


def test_balanced_split_takes_as_many_of_each_class_as_the_smallest_has():
    split = data.make_split(DataConfig(dataset="digits"), seed=0)
    assert split.counts.tolist() == [134] * 10 == torch.bincount(split.train_labels).tolist()
    assert not split.minority.any() and len(split.test_labels) == 400
    everything = data.load_dataset("digits", "train")
    assert torch.equal(split.train_images, everything.images[split.train_indices])
    assert torch.equal(split.train_labels, everything.labels[split.train_indices])


def test_step_split_is_the_papers():
    cfg = DataConfig(dataset="digits", imbalance="step", num_majority=3, ratio=10, n_max=130)
    split = data.make_split(cfg, seed=0)
    assert (
        split.counts.tolist() == [130] * 3 + [13] * 7 == torch.bincount(split.train_labels).tolist()
    )
    assert split.minority.tolist() == [False] * 3 + [True] * 7
    assert (
        data.make_split(cfg.replace(ratio=1.0), seed=0).minority.tolist() == split.minority.tolist()
    )
    cfg = DataConfig(
        dataset="digits", imbalance="exponential", ratio=100, n_max=100, majority="random"
    )
    split = data.make_split(cfg, seed=4)
    assert split.counts.sort(descending=True).values.tolist() == [
        100,
        60,
        36,
        22,
        13,
        8,
        5,
        3,
        2,
        1,
    ]
    assert torch.equal(split.minority, split.counts <= 8), "the classes below the median"


def test_random_majority_follows_the_seed():
    cfg = DataConfig(dataset="digit_pairs", imbalance="step", num_majority=50, ratio=100)
    assert cfg.majority == "random"
    one, same, other = (data.make_split(cfg, seed=seed) for seed in (1, 1, 2))
    assert one.counts.sort().values.tolist() == [1] * 50 + [100] * 50
    assert torch.equal(one.minority, one.counts == 1)
    assert torch.equal(one.train_indices, same.train_indices) and not torch.equal(
        one.minority, other.minority
    )


def test_smaller_classes_are_subsets_of_larger_ones_and_seeds_differ():
    cfg = DataConfig(dataset="digits", imbalance="step", num_majority=5, ratio=10, n_max=100)
    ten, hundred = (
        data.make_split(cfg.replace(ratio=r), seed=0).train_indices for r in (10.0, 100.0)
    )
    assert set(hundred.tolist()) < set(ten.tolist())
    assert not torch.equal(ten, data.make_split(cfg, seed=1).train_indices)


def test_more_than_there_is_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match="140 of 134 in class 8: lower n_max"):
        data.make_split(DataConfig(dataset="digits", n_max=140), seed=0)


def test_mean_and_std_are_of_all_training_images(tmp_path):
    images = colours(number=4)
    name = data.resolve_dataset(f"folder:{tree(tmp_path / 'pets', images)}")
    split = data.make_split(DataConfig(dataset=name, n_max=1), seed=0)
    pixels = np.stack([image for key, image in images.items() if key.startswith("train")]) / 255
    np.testing.assert_allclose(split.mean, pixels.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(split.std, pixels.std((0, 1, 2)), rtol=1e-12)
    assert split.augment == "flip_crop"
    assert data.make_split(DataConfig(dataset=name, augment="none"), seed=0).augment == "none"


def batches(images, labels=None, *, batch_size=4, augment="none", **options):
    channels = images.shape[1]
    labels = torch.arange(len(images)) if labels is None else labels
    options = {"mean": [0.0] * channels, "std": [1 / 255] * channels} | options
    return data.Batches(images, labels, batch_size=batch_size, augment=augment, **options)


def noise(number=13, channels=3, height=16, width=16):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(
        1, 256, (number, channels, height, width), dtype=torch.uint8, generator=generator
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normalisation_is_exact_in_every_dtype(dtype):
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.25, 1.0)
    x, _ = next(batches(images, mean=mean, std=std, dtype=dtype).in_order())
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
    assert x.dtype == dtype
    rtol = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-8}[dtype]
    torch.testing.assert_close(
        x.double(), (images.double() / 255 - mean) / std, rtol=rtol, atol=rtol
    )


LAST = [
    (12, 4, [4, 4, 4]),
    (14, 4, [4, 4, 4, 2]),
    (13, 4, [4, 4, 5]),
    (3, 4, [3]),
    (1, 4, [1]),
    (3, 1, [1, 1, 1]),
]


@pytest.mark.parametrize(("number", "size", "expected"), LAST)
def test_last_batch_of_one_joins_the_one_before(number, size, expected):
    loader = batches(noise(number), batch_size=size)
    assert (
        [len(y) for _, y in loader.in_order()]
        == expected
        == [len(y) for _, y, _ in loader.shuffled(0, 0)]
    )
    assert len(loader) == len(expected)


def test_every_image_once_with_its_label_and_row():
    images, labels = noise(), torch.arange(13) * 7
    x, y, rows = (
        torch.cat(parts) for parts in zip(*batches(images, labels).shuffled(5, 2), strict=True)
    )
    assert sorted(rows.tolist()) == list(range(13)) != rows.tolist()
    assert torch.equal(y, labels[rows])
    torch.testing.assert_close(x, images[rows].float())


def epoch(seed, number, **options):
    return torch.cat(
        [x for x, _, _ in batches(noise(), augment="flip_crop", **options).shuffled(seed, number)]
    )


def test_an_epoch_follows_from_seed_and_number_alone():
    first = epoch(0, 3)
    loader = batches(noise(), augment="flip_crop")
    for number in range(3):
        list(loader.shuffled(0, number))
    assert torch.equal(torch.cat([x for x, _, _ in loader.shuffled(0, 3)]), first), "resumed or not"
    assert torch.equal(epoch(0, 3, batch_size=5), first)
    assert not torch.equal(epoch(0, 4), first) and not torch.equal(epoch(1, 3), first)
    assert not torch.equal(epoch(3, 0), first), "seed and number are not exchangeable"


@pytest.mark.parametrize("shape", [(16, 16), (8, 24)])
def test_flips_and_crops_are_those_of_a_loop_over_images(shape):
    images = noise(40, 3, *shape)
    (down, right), seen = (side // 8 for side in shape), set()
    for x, _, rows in batches(images, augment="flip_crop").shuffled(0, 0):
        for made, row in zip(x, rows.tolist(), strict=True):
            explained = []
            for mirror in (False, True):
                image = images[row].flip(2) if mirror else images[row]
                padded = np.pad(image.numpy(), ((0, 0), (down, down), (right, right)))
                for top, left in itertools.product(range(2 * down + 1), range(2 * right + 1)):
                    if np.array_equal(
                        made, padded[:, top : top + shape[0], left : left + shape[1]]
                    ):
                        explained.append((mirror, top, left))
            assert len(explained) == 1, "exactly one mirror image and shift explains it"
            seen.add(explained[0])
    assert {mirror for mirror, _, _ in seen} == {False, True}
    assert {top for _, top, _ in seen} == set(range(2 * down + 1))
    assert {left for _, _, left in seen} == set(range(2 * right + 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_changes_neither_order_nor_augmentation():
    torch.testing.assert_close(
        epoch(0, 1, device="cuda").cpu(), epoch(0, 1)
    )  # a GPU rounds a·b + c once

"""What careless or hostile users type, name and leave in files; see `hostile.acting`."""

TYPED = {
    "0": "0",
    "1": "1",
    "-1": "-1",
    "tiny": "5e-324",
    "huge": "1e308",
    "nan": "nan",
    "inf": "inf",
    "2^63": "9223372036854775808",
    "empty": "",
    "letters": "é漢🎉",
    "path": "../../escaped",
    "dash": "-x",
    "no text": "\udcff",
    "long": "x" * 5000,
    "line": "a\nb",
    "shell": "$(touch PWNED)",
}
"""What is typed in the place of every option and argument of every command."""

COMMANDS = {
    "reproduce": "reproduce fig9 --profile smoke --no-report",
    "report": "report --profile smoke",
    "train": "train --width 2 --epochs 1 --n-max 6",
    "measure": "measure arrays.npz",
    "verify": "verify",
    "certify": "certify",
    "runs list": "runs list",
    "runs show": "runs show",
    "runs remove": "runs remove --yes",
    "runs export": "runs export fig9 --profile smoke",
    "data fetch": "data fetch",
    "data check": "data check",
    "data describe": "data describe",
}
"""How each command is usually typed; one option or argument more is added."""

FLAGS = ("--dry-run", "--list", "--largest", "--force", "--report", "--per-class", "--all", "--yes")
FLAGS += ("--finished", "--json", "--command")
"""Options without a value."""

OPTIONS = """
reproduce names          2222222222222222
reproduce --profile      2222222222222222
reproduce --parameter    2222222222222222
reproduce --workers      2w22222222222222
reproduce --scheduler    wwwwwwwwwwwwwwww
reproduce --train        2222222222222222
reproduce --minutes      2w2.w22w22222222
reproduce --parameters   2222222222222222
report --profile         2222222222222222
report --parameter       2222222222222222
train --dataset          2222222222222222
train --profile          2222222222222222
train --model            2222222222222222
train --cell             2222222222222222
train --network          2222222222222222
train --num-majority     2222222222222222
train --ratio            2222222222222222
train --n-max            2w22222222222222
train --width            2222222222222222
train --seed             ww22222222222222
train --recipe           2222222222222222
train --epochs           2w22222w22222222
train --batch-size       2222222w22222222
train --lr               2w2ww22w22222222
train --set              2222222222222222
train --config           1111111121111111
train --device           2222222222222222
measure source           2222222222222222
measure --layer          2222222222222222
measure --num-classes    2222222222222222
measure --pool           2222222222222222
measure --csv            wwwwwwww2wwww1ww
verify --profile         2222222222222222
certify ids              2222222222222222
runs list text           ww2wwwwwwww2wwww
runs show run            2222222222222222
runs remove runs         2222222222222222
runs export names        2222222222222222
runs export --profile    2222222222222222
runs export --collection ww2wwwwww2222122
runs export --parameter  2222222222222222
data fetch name          2222222222222222
data check name          2222222222222222
data describe name       2222222222222222
"""
"""Each option and argument, and a letter for each of TYPED in their order: w it works; 1 or 2 it is refused by one
message, with this exit code; "." it depends on what is stored. Nothing half-written stays, and nothing outside the
folders of the project changes."""

SET = {
    "0": "0",
    "-1": "-1",
    "tiny": "5e-324",
    "huge": "1e308",
    "nan": ".nan",
    "inf": ".inf",
    "2^63": "9223372036854775808",
    "2^31": "2147483648",
    "text": "x",
    "list": "[1]",
    "none": "~",
    "map": "{a: 1}",
}
"""What is typed for every option of a configuration, in YAML."""

SETTINGS = """
kind                   222222222222
seed                   w222222w2222
profile                22222222w222
data.dataset           222222222222
data.imbalance         222222222222
data.num_majority      222222222222
data.ratio             222w22ww2222
data.majority          2222222222w2
data.n_max             2222222222w2
data.test_per_class    2222222222w2
data.augment           222222222222
model.kind             222222222222
model.width            222222222222
model.cell             2222222222w2
model.groups           2222222222w2
model.feature_norm     222222222222
model.solver.method    222222222222
model.solver.tol       22w222222222
model.solver.max_steps 222222ww2222
model.solver.history   222222ww22w2
model.solver.ridge     2222222222w2
model.solver.damping   2222222222w2
model.gradient.method  222222222222
model.gradient.steps   2222222222w2
model.gradient.damping 2222222222w2
model.gradient.beta    2222222222w2
model.start            22222222w2w2
model.unroll           2222222222w2
model.num_blocks       2222222222w2
model.network          2222222222w2
model.source           2222222222w2
train.epochs           222222ww2222
train.batch_size       222222ww2222
train.lr               22ww22ww2222
train.momentum         w2w222222222
train.weight_decay     w2ww22ww2222
train.schedule         222222222222
train.clip             22ww22ww22w2
train.constraint       222222222222
train.e_w              2222222222w2
train.e_h              2222222222w2
train.skip             222222222222
train.jacobian_reg     w2ww22ww2222
train.precision        222222222222
train.compile          222222222222
train.log_every        222222ww2222
train.nc_on_test       222222222222
train.deterministic    222222222222
data.subset_seed       w222222w22w2
"""
"""Each option of a configuration, and a letter for each of SET in their order, as in OPTIONS."""

NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "above": "../../escaped",
    "absolute": "/escaped-by-a-name",
    "dash": "-x",
    "line": "a\nb",
    "blank": "a b",
    "letters": "é漢🎉",
    "markup": "<img src=x onerror=alert(1)>",
    "shell": "$(touch PWNED)",
    "quote": "a'b",
    "quotes": 'a"b',
    "format": "%s{0}",
    "mathematics": "$\\bad{$",
    "formula": "=cmd|x",
    "no text": "\udcff",
    "long": "x" * 300,
    "backslash": "a\\b",
    "hidden": ".hidden",
    "star": "*",
    "home": "~",
    "reserved": "runs",
    "tag": "[bold]a[/bold]",
}
"""Names of classes, folders, parameters, collections, runs, notebooks, profiles, figures."""

PLACES = """
class                .....wwwwwwwwwwww.w.wwww
folder               .....wwwwwwwwwwww.wwwwww
parameter            222222222222222222222222
value                wwwwwwwwwwwwwwww2wwwwwww
collection           w222222222222222212222w2
run                  222222222222222222222222
removed              222222222222222222222222
notebook             222222222222222222222222
profile              rrrrrrrrrrrrrrrrrwrrrrrr
other                wrrrrrrrrrrrrrrrrwrrrrwr
figure               rrrrrrrrrrrrrrrrrrrrrrwr
sound                rrrrrrrrrrrrrrrrrrrrrrrr
"""
"""Where a name goes, and a letter for each of NAMES in their order: w it works; 1 or 2 the
command refuses it by one message, with this exit code; r the library does; "." where no such name can be made."""

SURROUNDINGS = {
    "unset": None,
    "empty": "",
    "nowhere": "PROJECT/nowhere",
    "file": "PROJECT/pyproject.toml",
    "nobody": "~nobody-at-all/x",
    "relative": "below",
    "letters": "PROJECT/é漢 \"q' $x",
    "device": "/dev/null",
    "no text": "PROJECT/\udcff",
    "number": "-1",
    "above": "../..",
    "long": "PROJECT/" + "x" * 300,
    "read-only": "PROJECT/closed",
}
"""What a variable of the environment is set to, in a PROJECT of its own; PROJECT/closed may not be written."""

ENVIRONMENT = """
NCLIB_ROOT       runs list  wwwwwwwwwwwww
NCLIB_ROOT       REPRODUCE  ww11111111212
NCLIB_RESULTS    runs list  wwww1wwwwww1w
NCLIB_RESULTS    TRAIN      www11ww1www1.
NCLIB_RESULTS    REPRODUCE  www11ww1.ww11
NCLIB_DATA       data check digits    wwwwwwwwwwwww
NCLIB_DATA       data fetch folder:photos  www11ww1www1.
NCLIB_THREADS    threads    wrrrrrrrrrrrr
NCLIB_WITH       runs list  wwwwwwwwwwwww
NCLIB_WITH       report     rrrrrrrrrrrrr
NCLIB_PAPERS     TRAIN      ww22222222222
NCLIB_PAPERS     REPRODUCE  ww22222222222
OMP_NUM_THREADS  TRAIN      wwwwwwwwwwwww
OMP_NUM_THREADS  REPRODUCE  wwwwwwwwwwwww
HOME             TRAIN      wwwwwwwwwwwww
HOME             REPRODUCE  wwwwwwwwwwwww
TMPDIR           TRAIN      wwwwwwwwwwwww
PATH             TRAIN      wwwwwwwwwwwww
PATH             REPRODUCE  wwwwwwwwwwwww
COLUMNS          REPRODUCE  wwwwwwwwwwwww
LC_ALL           REPRODUCE  wwwwwwwwwwwww
TZ               runs list  wwwwwwwwwwwww
"""
"""A variable, what is asked, and a letter for each of SURROUNDINGS in their order, as in PLACES. NCLIB_RESULTS and
NCLIB_DATA say where to write; besides, nothing outside the project changes."""

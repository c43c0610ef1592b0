"""Numbers that nobody would give, in the place of every argument of every public function of the core.

One letter a case: what must happen when the argument of a row has the value of the column.

    w  it works, and every number in the answer is finite
    u  it works, and the answer has NaN or infinity, as the docstring says
    r  this library refuses it, in a sentence of its own
    t  Python, NumPy or torch refuse it as a value of a wrong type, before anything is done
    .  not tried: it asks for endless work
"""

VALUES = {
    "0": 0,
    "1": 1,
    "-1": -1,
    "tiny": 5e-324,
    "huge": 1e308,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "2^63": 2**63,
    "true": True,
    "none": None,
    "text": "x",
    "list": [[1]],
}

CALLS = """
FixedPointIteration(tol=1e-4, max_steps=5, damping=0.5)
Anderson(tol=1e-4, max_steps=5, history=2, ridge=1e-8, damping=0.5)
Broyden(tol=1e-4, max_steps=5, history=2)
fixed_point(f=half, solver=Anderson(), z0=points, args=(points,), rows='leave', parts=[1, 2])
Implicit(solver=Anderson(), steps=2)
Neumann(terms=2)
Phantom(steps=2, damping=0.5)
Unrolled(steps=2, tol=1e-3)
Reversible(steps=2, beta=0.5, tol=1e-3)
DEQ(cell=half, solver=Anderson(), gradient=Implicit(), z0='x', eval_solver=Broyden(), on_failure='warn')
DEQ.__call__(layer, x=points, z0=points, args=(), solver=Anderson(), gradient=Implicit(), at=[1])
row_jacobians(f=half, x=points)
spectral_radius(f=half, z=points, num_iters=2)
jacobian_frobenius_sq(f=half, z=points, num_probes=1)
ClassMoments(num_classes=3, dim=4, weighting='class')
ClassMoments.update(moments, h=h, labels=labels)
ClassMoments.merge(moments, other=moments)
ClassMoments.with_weighting(moments, weighting='class')
ClassMoments.select(moments, classes=[0, 1])
class_moments(h=h, labels=labels, num_classes=3, weighting='class')
simplex_etf(num_classes=3, dim=4)
nc0(w=w)
nc1_pinv(m=moments)
nc1_pinv_class_balanced(h=h, labels=labels, m=moments)
nc1_trace_ratio(m=moments)
nc1_cdnv(m=moments)
nc1_chance(m=moments, seed=0)
nc2_etf_distance(v=w)
nc2_equinorm(v=w)
nc2_uniformity(v=w, log=False)
nc2_equiangular(v=w)
nc3_self_duality(w=w, m=moments)
nc3_alignment(w=w, m=moments)
nc3_unnormalised_duality(w=w, m=moments)
nc4_ncc_mismatch(h=h, logits=logits, m=moments)
effective_rank(m=moments)
minority_cosine(w=w, minority=[1, 2])
classifier_norm_ratio(w=w, minority=[1, 2])
paper_eq13_uncentred(m=moments)
paper_eq13_uncentred_printed_constant(m=moments)
paper_eq14_uncentred(w=w, m=moments)
ideal_values(num_classes=3, dim=4)
nc_report(h=h, labels=labels, logits=logits, w=w, weighting='class', minority=[2], moments=None, num_classes=3)
measure(model=network, loader=loader, layers=None, num_classes=3, pool='mean', max_dim=64, keep=2**20)
features(model=network, loader=loader, layer=None, pool='mean', num_classes=3)
measure_file(path=arrays, num_classes=3)
ood_scores(features=h, moments=moments, w=w, method='nci', logits=logits, alpha=0.5)
ood_scores(features=h, moments=moments, method='neco', dim=2)
step_imbalance(num_classes=3, n_max=10, num_majority=1, ratio=2.0)
exponential_imbalance(num_classes=3, n_max=10, ratio=2.0)
class_order(num_classes=3, how='random', seed=0)
majority_classes(num_classes=3, num_majority=1, how='random', seed=0)
assign_counts(counts=counts, order=order)
subsample_indices(labels=labels, counts=counts, seed=0)
sample_rows(labels=labels.numpy(), per_class=2)
adjusted_logits(logits=logits, counts=counts)
class_balanced_weights(counts=counts)
ldam_margins(counts=counts)
Loss(name='ldam_drw', counts=counts, epochs=2)
Loss.__call__(loss, logits=logits, labels=labels, epoch=2)
SolverConfig(method='anderson', tol=1e-3, max_steps=5, history=2, ridge=1e-8, damping=0.5)
GradientConfig(method='phantom', steps=2, damping=0.5)
GradientConfig(method='reversible', steps=2, beta=0.5)
DataConfig(dataset='digits', imbalance='step', num_majority=3, ratio=10.0, majority='first')
DataConfig(n_max=5, test_per_class=2, augment='none', subset_seed=0)
ModelConfig(kind='deq', width=2, cell='residual', groups=2, feature_norm='none', head='linear')
TrainConfig(epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.0)
RunConfig(data=DataConfig(), model=ModelConfig(), train=TrainConfig(), seed=0, profile='smoke')
recipe(name='paper', epochs=2)
run_id(config=RunConfig())
suggest(wrong='a', allowed=['b'], what='option')
parse_json(text='{}', what='a file')
resolve_dataset(name='digits', base=None)
load_dataset(name='digits', split='test')
make_split(cfg=DataConfig(n_max=2), seed=0)
Batches(images=images, labels=labels[:8], batch_size=2, mean=(0.5,), std=(0.5,), augment='none')
build_model(cfg=ModelConfig(width=2), num_classes=3, in_channels=1, seed=0)
count_parameters(module=network)
learning_rate(train=TrainConfig(epochs=2), step=0, total_steps=4)
interval(values=[1.0, 2.0, 4.0])
spread(values=[1.0, 2.0, 4.0])
verdict(found=interval([1.0, 2.0, 4.0]), scale='toy', claim='lower', terminal=True, size=1.0)
cosine_gram(vectors=w.numpy(), centred=True)
"""

NUMBERS = """
FixedPointIteration tol                 rwrwwrrrwrrrr
FixedPointIteration max_steps           rwrrrrrrwrrrr
FixedPointIteration damping             wrrwrrrrrrrrr
Anderson tol                            rwrwwrrrwrrrr
Anderson max_steps                      rwrrrrrrwrrrr
Anderson history                        rwrrrrrrwrrrr
Anderson ridge                          rwrwwrrrwrrrr
Anderson damping                        wrrwrrrrrrrrr
Broyden tol                             rwrwwrrrwrrrr
Broyden max_steps                       rwrrrrrrwrrrr
Broyden history                         rwrrrrrrwrrrr
fixed_point f                           ttttttttttttt
fixed_point solver                      rrrrrrrrrrrrr
fixed_point z0                          wwwwwuuuwrrrr
fixed_point args                        tttttttttttrr
fixed_point rows                        rrrrrrrrrrrrr
fixed_point parts                       ttttttttttwtt
Implicit solver                         rrrrrrrrrrwrr
Implicit steps                          rwrrrrrrwrwrr
Neumann terms                           rwrrrrrrwrrrr
Phantom steps                           rwrrrrrrwrrrr
Phantom damping                         wrrwrrrrrrrrr
Unrolled steps                          rwrrrrrrwrrrr
Unrolled tol                            rwrwwrrrwrrrr
Reversible steps                        rwrrrrrrwrrrr
Reversible beta                         rrrwrrrrrrrrr
Reversible tol                          rwrwwrrrwrrrr
DEQ cell                                wwwwwwwwwwwww
DEQ solver                              rrrrrrrrrrwrr
DEQ gradient                            rrrrrrrrrrwrr
DEQ z0                                  rrrrrrrrrrrwr
DEQ eval_solver                         rrrrrrrrrrwrr
DEQ on_failure                          rrrrrrrrrrrrr
DEQ.__call__ x                          wwwwuuuuwwrrr
DEQ.__call__ z0                         wwwwuuuuwrwrr
DEQ.__call__ args                       tttttttttttrr
DEQ.__call__ solver                     rrrrrrrrrrwrr
DEQ.__call__ gradient                   rrrrrrrrrrwrr
DEQ.__call__ at                         rrrrrrrrrrwrr
row_jacobians f                         ttttttttttttt
row_jacobians x                         wwwwwwwwwtttt
spectral_radius f                       ttttttttttttt
spectral_radius z                       wwwwwwwwwtttr
spectral_radius num_iters               rwrrrrrrwrrrr
jacobian_frobenius_sq f                 ttttttttttttt
jacobian_frobenius_sq z                 wwwwwwwwwtttr
jacobian_frobenius_sq num_probes        rwrrrrrr.rrrr
ClassMoments num_classes                rwrrrrrrrrrrr
ClassMoments dim                        rwrrrrrrrrrrr
ClassMoments weighting                  rrrrrrrrrrrrr
ClassMoments.update h                   wwwwurrrwrrrr
ClassMoments.update labels              wwrrrrrrrrrrr
ClassMoments.merge other                ttttttttttttt
ClassMoments.with_weighting weighting   rrrrrrrrrrrrr
ClassMoments.select classes             rrrrrrrrrrrrr
class_moments h                         wwwwurrrwrrrr
class_moments labels                    uurrrrrrrrrrr
class_moments num_classes               rrrrrrrrrrrrr
class_moments weighting                 rrrrrrrrrrrrr
simplex_etf num_classes                 rrrrrrrrrrrrr
simplex_etf dim                         rrrrrrrrtrrrr
nc0 w                                   wwwwurrrwwrrw
nc1_pinv m                              ttttttttttttt
nc1_pinv_class_balanced h               wwwwurrrwrrrr
nc1_pinv_class_balanced labels          wwrrrrrrrrrrr
nc1_pinv_class_balanced m               ttttttttttttt
nc1_trace_ratio m                       ttttttttttttt
nc1_cdnv m                              ttttttttttttt
nc1_chance m                            ttttttttttttt
nc1_chance seed                         w.tttttt..wtw
nc2_etf_distance v                      uwwwwrrrwwrru
nc2_equinorm v                          uwwwwrrrwwrrw
nc2_uniformity v                        uwwwwrrrwwrru
nc2_uniformity log                      wwwwwwwwwwwww
nc2_equiangular v                       uwwwurrrwwrru
nc3_self_duality w                      uwwwwrrrwwrrr
nc3_self_duality m                      ttttttttttttt
nc3_alignment w                         uwwwwrrrwwrrr
nc3_alignment m                         ttttttttttttt
nc3_unnormalised_duality w              wwwwurrrwwrrr
nc3_unnormalised_duality m              ttttttttttttt
nc4_ncc_mismatch h                      wwwwwrrrwrrrr
nc4_ncc_mismatch logits                 wwwwwrrrwrrrr
nc4_ncc_mismatch m                      ttttttttttttt
effective_rank m                        ttttttttttttt
minority_cosine w                       uwwwurrrwwrrr
minority_cosine minority                rrrrrrrrrrrrr
classifier_norm_ratio w                 uwwwwrrrwwrrr
classifier_norm_ratio minority          rrrrrrrrrrrrr
paper_eq13_uncentred m                  ttttttttttttt
paper_eq13_uncentred_printed_constant m ttttttttttttt
paper_eq14_uncentred w                  uwwwwrrrwwrrr
paper_eq14_uncentred m                  ttttttttttttt
ideal_values num_classes                rrrrrrrrurrrr
ideal_values dim                        rurrrrrruuurr
nc_report h                             uuurrrrrurrrr
nc_report labels                        uurrrrrrrrrrr
nc_report logits                        uuuuurrrururr
nc_report w                             uuuuurrruuurr
nc_report weighting                     rrrrrrrrrrrrr
nc_report minority                      rrrrrrrrrrwrr
nc_report moments                       ttttttttttutt
nc_report num_classes                   rrrrrrrrrrurr
measure model                           rrrrrrrrrrrrr
measure loader                          tttttttttttrr
measure layers                          rtttttttttwrt
measure num_classes                     rrrrrrrrrrwrr
measure pool                            rrrrrrrrrrrrr
measure max_dim                         rrrr.w..w.ttt
measure keep                            w.w.....w.ttt
features model                          rrrrrrrrrrrrr
features loader                         tttttttttttrr
features layer                          ttttttttttwrt
features pool                           rrrrrrrrrrrrr
features num_classes                    rrrrrrrrrrwrr
measure_file path                       rrrrrrrrrrrrr
measure_file num_classes                rrrrrrrrrrwrr
ood_scores features                     wwwwurrrwrrrr
ood_scores moments                      ttttttttttttt
ood_scores w                            wwwwwuuuwwrrr
ood_scores method                       rrrrrrrrrrrrr
ood_scores logits                       wwwwwrrrwrwrr
ood_scores alpha                        wwwwuuuuwwttt
ood_scores dim                          rwrrrrrrrwwtt
step_imbalance num_classes              rrrrrrrrrrrrr
step_imbalance n_max                    rwrrrrrrrrrrr
step_imbalance num_majority             rwrrrrrrrrrrr
step_imbalance ratio                    rwrrwrrrwwrrr
exponential_imbalance num_classes       rrrrrrrrrrrrr
exponential_imbalance n_max             rwrrrrrrrrrrr
exponential_imbalance ratio             rwrrwrrrwwrrr
class_order num_classes                 rrrrrrrrrrrrr
class_order how                         rrrrrrrrrrrrr
class_order seed                        wwwtttttwtttt
majority_classes num_classes            rrrrrrrrrrrrr
majority_classes num_majority           rwrrrrrrrrrrr
majority_classes how                    rrrrrrrrrrrrr
majority_classes seed                   wwwtttttwtttt
assign_counts counts                    wwwwwuuuwwttr
assign_counts order                     rrrrrrrrrrttr
subsample_indices labels                rrrrrrrrrrttr
subsample_indices counts                rwrrrrrrrrttr
subsample_indices seed                  wwwtttttwtttt
sample_rows labels                      wwwwwwwwwwwww
sample_rows per_class                   wwwtttttwwwtt
adjusted_logits logits                  wwwwwuuuwtttt
adjusted_logits counts                  uwwwwuuuwwttt
class_balanced_weights counts           uwwuwuwwwwttt
ldam_margins counts                     uwuwwuwwwwttt
Loss name                               rrrrrrrrrrrrr
Loss counts                             rwrrwwwrwwttt
Loss epochs                             wwwwwwwwwwwww
Loss.__call__ logits                    wwwwwuuuwtttt
Loss.__call__ labels                    wwttttttttttt
Loss.__call__ epoch                     wwwwwwwwwwttt
SolverConfig method                     rrrrrrrrrrrrr
SolverConfig tol                        rrrwrrrrrrrrr
SolverConfig max_steps                  rwrrrrrrwrrrr
SolverConfig history                    rwrrrrrrwrwrr
SolverConfig ridge                      rwrwwrrrwrwrr
SolverConfig damping                    wrrwrrrrrrwrr
GradientConfig method                   rrrrrrrrrrrrr
GradientConfig steps                    rwrrrrrrwrwrr
GradientConfig damping                  wrrwrrrrrrwrr
GradientConfig beta                     rrrwrrrrrrwrr
DataConfig dataset                      rrrrrrrrrrrwr
DataConfig imbalance                    rrrrrrrrrrrrr
DataConfig num_majority                 rwrrrrrrwrrrr
DataConfig ratio                        rwrrwrrrwrrrr
DataConfig majority                     rrrrrrrrrrwrr
DataConfig n_max                        rwrrrrrrrrwrr
DataConfig test_per_class               rwrrrrrrrrwrr
DataConfig augment                      rrrrrrrrrrrrr
DataConfig subset_seed                  wwrrrrrrrrwrr
ModelConfig kind                        rrrrrrrrrrrrr
ModelConfig width                       rwrrrrrrrrrrr
ModelConfig cell                        rrrrrrrrrrwrr
ModelConfig groups                      rwrrrrrrwrwrr
ModelConfig feature_norm                rrrrrrrrrrrrr
ModelConfig head                        rrrrrrrrrrrrr
TrainConfig epochs                      rwrrrrrrwrrrr
TrainConfig batch_size                  rrrrrrrrwrrrr
TrainConfig lr                          rwrwwrrrwrrrr
TrainConfig momentum                    wrrwrrrrrrrrr
TrainConfig weight_decay                wwrwwrrrwrrrr
RunConfig data                          rrrrrrrrrrrrr
RunConfig model                         rrrrrrrrrrrrr
RunConfig train                         rrrrrrrrrrrrr
RunConfig seed                          wwrrrrrrrrrrr
RunConfig profile                       rrrrrrrrrrrwr
recipe name                             rrrrrrrrrrrrt
recipe epochs                           rwrrrrrrwrrrr
run_id config                           ttttttttttttt
suggest wrong                           wwwwwwwwwwwww
suggest allowed                         tttttttttttww
suggest what                            wwwwwwwwwwwww
parse_json text                         tttttttttttrt
parse_json what                         wwwwwwwwwwwww
resolve_dataset name                    tttttttttttrt
resolve_dataset base                    wwwwwwwwwwwww
load_dataset name                       tttttttttttrt
load_dataset split                      rrrrrrrrrrrrr
make_split cfg                          ttttttttttttt
make_split seed                         w.wt.t..wtttt
Batches images                          wwwrrrrrwrttt
Batches labels                          wwwrrrrrwrttt
Batches batch_size                      rwrrtttrwwttt
Batches mean                            ttttttttttttw
Batches std                             ttttttttttttw
Batches augment                         rrrrrrrrrrrrr
build_model cfg                         ttttttttttttt
build_model num_classes                 wwttrtrtrtttt
build_model in_channels                 wwtttttttwttt
build_model seed                        wwwttttttwttt
count_parameters module                 ttttttttttttt
learning_rate train                     ttttttttttttt
learning_rate step                      wwwwtuttwwttt
learning_rate total_steps               rwwwwuwwwwttt
interval values                         ttttttttttttt
spread values                           ttttttttttttu
verdict found                           ttttttttttttt
verdict scale                           rrrrrrrrrrrrt
verdict claim                           wwwwwwwwwwwrt
verdict terminal                        wwwwwwwwwwwww
verdict size                            wwwwwwwwwwwww
cosine_gram vectors                     uuuuwuuuwuttu
cosine_gram centred                     wwwwwwwwwwwww
"""
"""Each argument, and a letter for each of VALUES in their order."""

LEFT_OUT = {
    "Solution Status Classifier Encoder BasicBlock ResidualCell MDEQCell WeightTied UntiedCells CosineLinear Output "
    "Dataset Split Features Ideal Metric Outputs Run Checkpoint Config StoredConfig "
    "OwnNetwork PostHocConfig LookConfig": "made by others",
    "BackwardNotConverged ForwardNotConverged EmptyClassWarning ConfigError DataError "
    "TrainingDiverged": "said, not called",
    "Solver Memory Solved solve settings check_solver failures_counted": "what a solver of one's own fulfils, and what "
    "the layer and the evaluation share",
    "paper_solver build_solver build_gradient scene_places default_device usable_device "
    "try_own_code": "no number given",
    "collect class_means feature_moments summarise evaluate per_class_rows usable arithmetic train reopen nested "
    "digest fetch check describe is_real is_whole evaluate_cell tell_rows join": "called with what has been checked, "
    "or tried as an option of the command",
}
"""Public names of the core that have no row, and why."""

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

FLAGS = ("--dry-run", "--list", "--largest", "--insecure", "--force", "--report", "--per-class", "--all", "--yes")
FLAGS += ("--finished", "--json", "--command")
"""Options without a value."""

OPTIONS = """
reproduce names          2222222222222222
reproduce --profile      2222222222222222
reproduce --parameter    2222222222222222
reproduce --workers      2w22222222222222
reproduce --scheduler    wwwwwwwwwwwwwwww
reproduce --host         wwwwwwwwwwwwwwww
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

DAMAGES = ("pipe", "nowhere", "itself", "zeros", "folder", "empty", "foreign", "nested", "twice", "other", "huge")
"""What is put in the place of a file: a pipe; a link to nothing, to itself, to /dev/zero; a folder; an empty file;
bytes that are no text; JSON nested 100,000 times; JSON with a key twice; JSON of another shape and version; 64 GiB of
zeros in a sparse file."""

FILES = """
results/runs/RUN/DONE                     runs list          wwwwwwwwwww
results/runs/RUN/DONE                     runs show RUN      wwwww111111
results/runs/RUN/DONE                     runs check         11111111111
results/runs/RUN/DONE                     runs remove RUN -y 22222wwwwww
results/runs/RUN/config.json              runs show RUN      11111111111
results/runs/RUN/config.json              runs check         11111111111
results/runs/RUN/config.json              REPRODUCE          wwwwwwwwwww
results/runs/RUN/provenance.json          runs show RUN      11111111111
results/runs/RUN/provenance.json          runs check         11111111111
results/runs/RUN/provenance.json          REPRODUCE          wwwwwwwwwww
results/runs/RUN/history.csv              runs show RUN      11111111111
results/runs/RUN/arrays.npz               runs show RUN      wwwwwwwwwww
results/runs/RUN/arrays.npz               runs check         11111111111
results/runs/RUN/weights.pt               runs check         11111111111
results/runs/RUN.partial/checkpoint.pt    checkpoint         wwwwwwwwwww
results/runs/RUN.partial/progress.json    runs list          wwwwwwwwwww
results/runs/RUN                          runs list          wwwwwwwwwww
results/runs/RUN                          REPRODUCE          wwwwwwwwwww
results/smoke/notebooks/neural_collapse/fig9.json   unchanged   wwwwwwwwwww
results/smoke/notebooks/neural_collapse/fig9.ipynb  report      rrrrrrrrrrr
notebooks/neural_collapse/fig9.ipynb      REPRODUCE          22222222222
own.json                                  CONFIG             .1122222222
arrays.npz                                measure arrays.npz 21122222222
photos/train/a/0.png                      data fetch folder:photos   22222222222
photos/train/a                            data fetch folder:photos   22222222222
data/cache/PHOTOS/dataset.json            cached images      rrrrrrrrrrr
data/cache/PHOTOS/SHA256SUMS              cached images      rrrrrrrrrrr
data/cache/PHOTOS/train_images.npy        cached images      rrrrrrrrrrr
data/cache/SOUND                          cached sound       rrrrrrrrrrr
song.wav                                  sound              rrrrrrrrrrr
results/reference/smoke/runs.json         reference run      rrrrrrrrrrr
results/reference/smoke/history.csv.xz    reference run      rrrrrrrrrrr
results/reference/smoke/arrays/RUN.npz    reference run      rrrrrrrrrrr
results/reference/smoke/datasets.json     reference sets     rwwrrrrrwwr
pyproject.toml                            root               wwwwwwwwwww
scheduler.json                            scheduler          rrrrrrrrrrr
"""
"""A file, what is asked of it, and a letter for each of DAMAGES in their order: w it works, whatever is damaged being
left out, set aside or made anew; 1 or 2 the command refuses it by one message, with this exit code; r the library does;
"." not tried. Everything else stays as it was. A pipe that is named by the user is read: shells hand over texts so."""

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
"""Where a name goes, and a letter for each of NAMES in their order, as in FILES; "." where no such name can be made."""

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
"""A variable, what is asked, and a letter for each of SURROUNDINGS in their order, as in FILES. NCLIB_RESULTS and
NCLIB_DATA say where to write; besides, nothing outside the project changes."""

ENDINGS = ("SIGKILL", "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""Signals that end a command, the one first that lets it do nothing more."""

SIGNALS = (*ENDINGS, "SIGPIPE", "SIGTSTP", "SIGCONT")

_ONE = "train --width 2 --n-max 4 --epochs 2 -s data.test_per_class=1"
_ALL = "reproduce --profile smoke --no-report"
_WORKERS = f"{_ALL} --workers 2 -p epochs=40"
_SITE = "report --profile smoke --force"
PHASES = {
    "training": (_ONE, False),
    "run's lock": (_ONE, False),
    "planning": (_ALL, False),
    "training of all": (_ALL, False),
    "cluster": (_WORKERS, False),
    "workers": (_WORKERS, False),
    "drawing's lock": (f"{_ALL} --force", True),
    "drawing": (f"{_ALL} --force", True),
    "site of the first notebook": ("reproduce --profile smoke --force", True),
    "site": (_SITE, True),
    "site's lock": (_SITE, True),
    "export": ("runs export --profile smoke --collection mine", True),
}
"""When a signal arrives, with what is typed, and whether its runs are stored and drawn before. SIGPIPE changes nothing;
after SIGTSTP and SIGCONT the command goes on. One of ENDINGS ends it with the code of the signal and in one message; no
process and no temporary file stays but after SIGKILL, nothing half-written passes for done, and the next call removes
what was left and completes."""

"""Reports of the results of runs: the page of one experiment's folder, or a static site of many runs.

python -m bam_jax.report runs/quickstart                          # report.html, report.md and figures/ beside its runs
python -m bam_jax.report runs                                     # runs/report/index.html: every run and experiment below runs
python -m bam_jax.report runs experiments/bam_*.py --scale=small  # and the tables of these experiments
"""

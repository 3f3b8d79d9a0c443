"""Everything private of TensorFlow and Keras that this project uses, by subject.

No other folder imports a private module (``tests/architecture/test_imports.py``). Each
function here names in brackets the test that notices when it breaks: a file of
``tests/replicator`` or ``tests/conformance``. Written for TensorFlow 2.21 and Keras
3.12 to 3.15.
"""

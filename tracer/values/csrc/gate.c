/* Makes the calls of torch's functions that a follower of values need not see; it hands all others to the follower.
 *
 * torch calls a mode's `__torch_function__` for each call. Most calls of a job are on host tensors or compute what the host never
 * works out, so the follower's answer is the function's own. gate.py is the only caller; function_kinds.py has the codes.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

enum { ALWAYS, IF_USUAL, IF_ON_HOST, IF_NO_DEFAULT }; /* when a function's call passes */
enum { PLAIN, TENSOR, SEVERAL, SLICE };               /* the types of usual arguments */

static PyObject *passing, *types, *defaults;          /* dict of function: when; dict of type: which; torch.utils._device */
static PyObject *is_cuda, *current_device, *follow, *device, *nbytes, *base, *ends[3];
static Py_ssize_t hollow_bytes;                       /* of a host tensor that does not pass; 0: all do */

static int code_of(PyObject *table, PyObject *key) {
    PyObject *code = PyDict_GetItem(table, key);
    return code ? (int)PyLong_AsLong(code) : -1;
}

static int has(PyObject *value, PyObject *name, PyObject *wanted) {
    PyObject *found = PyObject_GetAttr(value, name);
    if (!found) PyErr_Clear();
    Py_XDECREF(found);
    return found == wanted;
}

/* Returns whether a host tensor, or the one that it is a view of, is large enough to be hollow. */
static int is_large(PyObject *tensor) {
    PyObject *size = PyObject_GetAttr(tensor, nbytes), *of = NULL;
    int large = size && PyLong_AsSsize_t(size) >= hollow_bytes;
    Py_XDECREF(size);
    if (!large && (of = PyObject_GetAttr(tensor, base)) && of != Py_None) large = is_large(of);
    Py_XDECREF(of);
    PyErr_Clear();
    return large;
}

/* Returns whether an argument is a usual one, and a tensor in it is on the host if it must be. */
static int is_usual(PyObject *value, int on_host, int depth) {
    switch (code_of(types, (PyObject *)Py_TYPE(value))) {
    case PLAIN: return 1;
    case TENSOR:
        if (!on_host && !hollow_bytes) return 1;
        return has(value, is_cuda, Py_False) ? !hollow_bytes || !is_large(value) : !on_host;
    case SLICE:
        for (int end = 0; end < 3; end++) {
            PyObject *bound = PyObject_GetAttr(value, ends[end]);
            int plain = bound && code_of(types, (PyObject *)Py_TYPE(bound)) == PLAIN;
            Py_XDECREF(bound);
            if (!plain) return PyErr_Clear(), 0;
        }
        return 1;
    case SEVERAL: {
        int is_tuple = PyTuple_Check(value);
        for (Py_ssize_t at = 0; at < (is_tuple ? PyTuple_Size(value) : PyList_Size(value)); at++)
            if (depth > 8 || !is_usual(is_tuple ? PyTuple_GetItem(value, at) : PyList_GetItem(value, at), on_host, depth + 1))
                return 0;
        return 1;
    }
    default: return 0;
    }
}

static int passes(PyObject *function, PyObject *args, PyObject *kwargs) {
    int when = code_of(passing, function);
    if (when <= ALWAYS) return when == ALWAYS;
    if (when == IF_NO_DEFAULT && !has(defaults, current_device, Py_None)) return 0;
    if (!PyTuple_CheckExact(args) || !is_usual(args, when != IF_USUAL, 0)) return 0;
    PyObject *name, *value;
    for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &name, &value);) {
        if (value != Py_None && PyUnicode_Compare(name, device) == 0) return 0;
        if (Py_TYPE(value) != &PyUnicode_Type && !is_usual(value, when != IF_USUAL, 0)) return 0;
    }
    return 1;
}

static PyObject *called(PyObject *mode, PyObject *const *given, Py_ssize_t n) {
    PyObject *kwargs = n > 3 && given[3] != Py_None ? given[3] : NULL;
    if (n > 2 && passes(given[0], given[2], kwargs)) return PyObject_Call(given[0], given[2], kwargs);
    PyObject *followed = PyObject_GetAttr((PyObject *)Py_TYPE(mode), follow), *result = NULL;
    if (followed && n > 2) result = PyObject_CallFunctionObjArgs(followed, mode, given[0], given[1], given[2], kwargs, NULL);
    Py_XDECREF(followed);
    return result;
}

static PyMethodDef method = {"__torch_function__", (PyCFunction)(void (*)(void))called, METH_FASTCALL, NULL};

/* Returns a `__torch_function__` of a mode; torch asks for it with the mode as its `__self__`. */
__attribute__((visibility("default"))) PyObject *gate(PyObject *mode, PyObject *functions, PyObject *arguments, PyObject *module,
                                                          Py_ssize_t bytes) {
    hollow_bytes = bytes;
    if (!passing) {
        passing = Py_NewRef(functions), types = Py_NewRef(arguments), defaults = Py_NewRef(module);
        is_cuda = PyUnicode_InternFromString("is_cuda"), current_device = PyUnicode_InternFromString("CURRENT_DEVICE");
        follow = PyUnicode_InternFromString("__torch_function__"), device = PyUnicode_InternFromString("device");
        ends[0] = PyUnicode_InternFromString("start"), ends[1] = PyUnicode_InternFromString("stop");
        ends[2] = PyUnicode_InternFromString("step");
        nbytes = PyUnicode_InternFromString("nbytes"), base = PyUnicode_InternFromString("_base");
    }
    return PyCFunction_New(&method, mode);
}

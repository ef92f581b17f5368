/* The frames of a call, which each recorded call walks through twice.

   Comes in: a frame of Python. Goes out: what tells its stack from others, and the frames of functions of one
   name. `capture.recording` does the same in Python where this was not built. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { DEEPEST = 512 };

static PyObject *n_back, *n_lasti, *n_name;

/* The frame that called another one, of which the reference is given up; NULL at the end, or with an exception. */
static PyObject *back_from(PyObject *frame)
{
    PyObject *back = PyObject_GetAttr(frame, n_back);
    Py_DECREF(frame);
    if (back == Py_None) {
        Py_DECREF(back);
        return NULL;
    }
    return back;
}

static PyObject *code_of(PyObject *frame) { return (PyObject *)PyFrame_GetCode((PyFrameObject *)frame); }

/* stack_key(frame) -> bytes: the identity of each frame's code and the place in it, the innermost first; None
   where they are too many */
static PyObject *stack_key(PyObject *self, PyObject *frame)
{
    int64_t places[2 * DEEPEST];
    int many = 0;
    Py_INCREF(frame);
    while (frame && many < 2 * DEEPEST) {
        PyObject *code = code_of(frame), *place = PyObject_GetAttr(frame, n_lasti);
        places[many++] = (int64_t)(intptr_t)code;
        places[many++] = place ? PyLong_AsLongLong(place) : 0;
        Py_DECREF(code);
        Py_XDECREF(place);
        frame = back_from(frame);
    }
    if (PyErr_Occurred()) {
        Py_XDECREF(frame);
        return NULL;
    }
    if (frame) {
        Py_DECREF(frame);
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)places, many * (Py_ssize_t)sizeof *places);
}

/* frames_named(frame, name) -> the frames from this one on whose functions have a name, the innermost first */
static PyObject *frames_named(PyObject *self, PyObject *args)
{
    PyObject *frame, *name, *found;
    if (!PyArg_UnpackTuple(args, "frames_named", 2, 2, &frame, &name) || !(found = PyList_New(0)))
        return NULL;
    Py_INCREF(frame);
    while (frame) {
        PyObject *code = code_of(frame), *own = PyObject_GetAttr(code, n_name);
        if (own && (own == name || !PyUnicode_Compare(own, name)))
            PyList_Append(found, frame);
        Py_DECREF(code);
        Py_XDECREF(own);
        frame = back_from(frame);
    }
    if (PyErr_Occurred()) {
        Py_DECREF(found);
        return NULL;
    }
    return found;
}

static PyMethodDef functions[] = {
    {"stack_key", stack_key, METH_O, NULL},
    {"frames_named", frames_named, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_frames(PyObject *module)
{
    n_back = PyUnicode_InternFromString("f_back"), n_lasti = PyUnicode_InternFromString("f_lasti");
    n_name = PyUnicode_InternFromString("co_name");
    return n_back && n_lasti && n_name ? PyModule_AddFunctions(module, functions) : -1;
}

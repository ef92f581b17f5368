/* Where the gradients of a call go: what each of its tensors asks of autograd's graph.

   Comes in: tensors of PyTorch, of which Python's own attributes are asked. Goes out: what
   `capture.pytorch.gradients` finds in Python of all calls; most calls come here, where it takes less time. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { LEAF = -1, MOST = 32, DEEPEST = 10 };

static PyObject *n_requires_grad, *n_grad_fn, *n_output_nr, *n_next, *n_variable, *without_variable;

typedef struct {
    PyObject *owner; /* a node or a leaf, borrowed */
    long number;
} Edge;

/* (node, number), (leaf, -1), or None for a tensor that requires no gradient. */
static PyObject *edge_of(PyObject *tensor)
{
    PyObject *needs = PyObject_GetAttr(tensor, n_requires_grad);
    int is_needed = needs ? PyObject_IsTrue(needs) : -1;
    Py_XDECREF(needs);
    if (is_needed < 0)
        return NULL;
    if (!is_needed)
        Py_RETURN_NONE;
    PyObject *node = PyObject_GetAttr(tensor, n_grad_fn);
    if (!node)
        return NULL;
    if (node == Py_None) {
        Py_DECREF(node);
        return Py_BuildValue("(Oi)", tensor, LEAF);
    }
    PyObject *number = PyObject_GetAttr(tensor, n_output_nr);
    if (number)
        return Py_BuildValue("(NN)", node, number);
    Py_DECREF(node);
    return NULL;
}

/* edges_of(list of tensors) -> list */
static PyObject *edges_of(PyObject *self, PyObject *tensors)
{
    Py_ssize_t many = PyList_Size(tensors);
    PyObject *found = many < 0 ? NULL : PyList_New(many);
    for (Py_ssize_t i = 0; found && i < many; i++) {
        PyObject *edge = edge_of(PyList_GetItem(tensors, i));
        if (!edge || PyList_SetItem(found, i, edge) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    }
    return found;
}

/* Append the objects of a kind in a nested value, in the order in which they are written. */
static int collect(PyObject *value, PyObject *kind, PyObject *found, int depth)
{
    if (value == Py_None || PyLong_Check(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value))
        return 1;
    int is_one = PyObject_IsInstance(value, kind), is_done = 1;
    if (is_one)
        return is_one > 0 && PyList_Append(found, value) == 0;
    if (depth > DEEPEST)
        return 1;
    if (PyTuple_Check(value)) {
        for (Py_ssize_t i = 0; is_done && i < PyTuple_Size(value); i++)
            is_done = collect(PyTuple_GetItem(value, i), kind, found, depth + 1);
    } else if (PyList_Check(value) || PyDict_Check(value)) {
        PyObject *values = PyList_Check(value) ? PyList_GetSlice(value, 0, PY_SSIZE_T_MAX) : PyDict_Values(value);
        is_done = values != NULL;
        for (Py_ssize_t i = 0; is_done && i < PyList_Size(values); i++)
            is_done = collect(PyList_GetItem(values, i), kind, found, depth + 1);
        Py_XDECREF(values);
    }
    return is_done;
}

/* found_in(value, kind) -> list, as `capture.recording.arguments` has it */
static PyObject *found_in(PyObject *self, PyObject *args)
{
    PyObject *value, *kind, *found;
    if (!PyArg_UnpackTuple(args, "found_in", 2, 2, &value, &kind) || !(found = PyList_New(0)))
        return NULL;
    if (collect(value, kind, found, 0))
        return found;
    Py_DECREF(found);
    return NULL;
}

static int place_of(const Edge *edges, int many, PyObject *owner, long number)
{
    for (int i = 0; i < many; i++)
        if (edges[i].owner == owner && edges[i].number == number)
            return i;
    return -1;
}

/* Read the edges that are not None, with their places; 0 where they are too many, none, or one comes twice. */
static int read_edges(PyObject *list, Edge *edges, Py_ssize_t *places)
{
    int many = 0;
    for (Py_ssize_t i = 0, all = PyList_Size(list); i < all; i++) {
        PyObject *edge = PyList_GetItem(list, i);
        if (edge == Py_None)
            continue;
        PyObject *owner = many < MOST ? PyTuple_GetItem(edge, 0) : NULL;
        PyObject *number = owner ? PyTuple_GetItem(edge, 1) : NULL;
        if (!number || place_of(edges, many, owner, PyLong_AsLong(number)) >= 0)
            return 0;
        edges[many].owner = owner, edges[many].number = PyLong_AsLong(number), places[many++] = i;
    }
    return many;
}

/* The leaf whose gradient a node accumulates, NULL without an exception for another node. */
static PyObject *leaf_of(PyObject *node)
{
    PyObject *kind = (PyObject *)Py_TYPE(node);
    if (PyDict_GetItemWithError(without_variable, kind) || PyErr_Occurred())
        return NULL;
    PyObject *leaf = PyObject_GetAttr(node, n_variable);
    if (!leaf && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        PyDict_SetItem(without_variable, kind, Py_None);
    }
    return leaf;
}

/* The number among some edges of the one that a node leads to, -1 for another one. */
static int edge_behind(PyObject *next, const Edge *edges, int many)
{
    PyObject *node = PyTuple_GetItem(next, 0);
    long number = PyLong_AsLong(PyTuple_GetItem(next, 1));
    int found = place_of(edges, many, node, number);
    if (found >= 0 || number)
        return found;
    PyObject *leaf = leaf_of(node);
    found = leaf ? place_of(edges, many, leaf, LEAF) : -1;
    Py_XDECREF(leaf);
    return found;
}

static PyObject *exits_among(PyObject *node, const Edge *edges, const Py_ssize_t *places, int many)
{
    PyObject *following = PyObject_GetAttr(node, n_next), *exits = following ? PyDict_New() : NULL;
    for (Py_ssize_t i = 0, all = exits ? PyTuple_Size(following) : 0; i < all; i++) {
        PyObject *next = PyTuple_GetItem(following, i);
        if (PyTuple_GetItem(next, 0) == Py_None)
            continue;
        int found = edge_behind(next, edges, many);
        PyObject *from = found < 0 ? NULL : PyLong_FromSsize_t(i);
        PyObject *to = from ? PyLong_FromSsize_t(places[found]) : NULL;
        int is_set = to && PyDict_SetItem(exits, from, to) == 0;
        Py_XDECREF(from);
        Py_XDECREF(to);
        if (!is_set) {
            Py_DECREF(exits);
            exits = NULL;
            break;
        }
    }
    Py_XDECREF(following);
    return exits;
}

/* single_node(edges of a call's tensors, its output) -> (node, {place behind the node: number of the tensor})
   where all edges of the output's node lead to tensors of the call, each of which is given once; else None */
static PyObject *single_node(PyObject *self, PyObject *args)
{
    PyObject *list, *output, *exits = NULL;
    Edge edges[MOST];
    Py_ssize_t places[MOST];
    if (!PyArg_UnpackTuple(args, "single_node", 2, 2, &list, &output))
        return NULL;
    int many = read_edges(list, edges, places);
    PyObject *node = many ? PyObject_GetAttr(output, n_grad_fn) : NULL;
    if (node && node != Py_None) {
        PyObject *number = PyObject_GetAttr(output, n_output_nr);
        if (number && place_of(edges, many, node, PyLong_AsLong(number)) < 0)
            exits = exits_among(node, edges, places, many);
        Py_XDECREF(number);
    }
    if (exits)
        return Py_BuildValue("(NN)", node, exits);
    Py_XDECREF(node);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"edges_of", edges_of, METH_O, NULL},
    {"found_in", found_in, METH_VARARGS, NULL},
    {"single_node", single_node, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_borders(PyObject *module)
{
    struct {
        PyObject **own;
        const char *text;
    } names[] = {{&n_requires_grad, "requires_grad"}, {&n_grad_fn, "grad_fn"},
                 {&n_output_nr, "output_nr"},         {&n_next, "next_functions"},
                 {&n_variable, "variable"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].own = PyUnicode_InternFromString(names[i].text)))
            return -1;
    return (without_variable = PyDict_New()) ? PyModule_AddFunctions(module, functions) : -1;
}

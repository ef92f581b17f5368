/* The arguments, outputs and gradients of a call as JSON, most of which are tensors.

   Comes in: values, and what the record wants to know of their tensors beside the values: `capture.pytorch.elements`
   has it in a tuple. Goes out: their text, as `capture.writing.elements` and the recorder write it, which are asked for
   whatever is not written here. It stands here because each value of each call comes here: a dozen of functions of
   Python for each take longer than the look at its memory. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

PyObject *fields_of(PyObject *texts, PyObject *tensor, PyObject *met, PyObject *known, long long *memory);
int is_tensor(PyObject *texts, PyObject *value);

/* What stands in the tuple: a list of (tensor, version, place, fields) or None; the places by the memory that was met,
   or None; the names of the model's inputs by identity, the fields of its states by identity, each behind a weak
   reference, or None; what is called with a tensor in memory that is not known, and that memory, or None; whether
   versions are written; four functions: the field of an argument's name, that of a place in whose memory a tensor lies,
   an element of a tensor whose fields, if any, are known, and one of any value. */
enum { GIVEN, MEMORY, INPUTS, STATES, MET, KNOWN, CHANGED, NAMED, SHARED, REST, ONE, WISHES };

typedef struct {
    char *own, room[8192];
    size_t used, size;
} Text;

typedef struct {
    PyObject *texts, *wishes, *prefix, *place; /* `place` is NULL where it is made of the prefix and the index */
    Py_ssize_t index;
} Spot;

static PyObject *n_version, *n_dict;

static int add(Text *text, const char *more, size_t size)
{
    if (text->used + size > text->size) {
        size_t wanted = 2 * (text->used + size);
        char *larger = PyMem_Realloc(text->own == text->room ? NULL : text->own, wanted);
        if (!larger) {
            PyErr_NoMemory();
            return 0;
        }
        if (text->own == text->room)
            memcpy(larger, text->room, text->used);
        text->own = larger, text->size = wanted;
    }
    memcpy(text->own + text->used, more, size);
    text->used += size;
    return 1;
}

static int add_words(Text *text, const char *words) { return add(text, words, strlen(words)); }

/* Add a text of Python, whose reference is given up; NULL is an exception. */
static int add_text(Text *text, PyObject *words)
{
    Py_ssize_t size;
    const char *own = words ? PyUnicode_AsUTF8AndSize(words, &size) : NULL;
    int is_done = own && add(text, own, size);
    Py_XDECREF(words);
    return is_done;
}

static PyObject *finished(Text *text, int is_good)
{
    PyObject *made = is_good ? PyUnicode_DecodeUTF8(text->own, text->used, NULL) : NULL;
    if (text->own != text->room)
        PyMem_Free(text->own);
    return made;
}

static PyObject *wish(const Spot *spot, int number) { return PyTuple_GetItem(spot->wishes, number); }

/* The place of a value, borrowed. */
static PyObject *place_of(Spot *spot)
{
    if (!spot->place)
        spot->place = PyUnicode_FromFormat("%U.%zd", spot->prefix, spot->index);
    return spot->place;
}

/* The version of a tensor; -1 of one that was made for inference. */
static long long version_of(PyObject *tensor)
{
    PyObject *found = PyObject_GetAttr(tensor, n_version);
    if (!found) {
        if (PyErr_ExceptionMatches(PyExc_RuntimeError))
            PyErr_Clear();
        return -1;
    }
    long long version = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return version;
}

static int note(Spot *spot, PyObject *tensor, const char *fields, size_t size)
{
    PyObject *place = place_of(spot), *text = place ? PyUnicode_FromStringAndSize(fields, size) : NULL;
    long long version = text ? version_of(tensor) : -1;
    PyObject *all = PyErr_Occurred() ? NULL : Py_BuildValue("(OLOO)", tensor, version, place, text);
    int is_done = all && PyList_Append(wish(spot, GIVEN), all) == 0;
    Py_XDECREF(all);
    Py_XDECREF(text);
    return is_done;
}

static int add_shared(Text *text, Spot *spot, long long memory)
{
    PyObject *places = wish(spot, MEMORY), *key = PyLong_FromLongLong(memory), *place = place_of(spot);
    PyObject *earlier = key && place ? PyDict_GetItemWithError(places, key) : NULL;
    int is_done = 0;
    if (earlier)
        is_done = add_text(text, PyObject_CallFunctionObjArgs(wish(spot, SHARED), earlier, NULL));
    else if (!PyErr_Occurred())
        is_done = PyDict_SetItem(places, key, place) == 0;
    Py_XDECREF(key);
    return is_done;
}

static int add_name(Text *text, const Spot *spot, PyObject *tensor)
{
    PyObject *key = PyLong_FromVoidPtr(tensor);
    PyObject *found = key ? PyDict_GetItemWithError(wish(spot, INPUTS), key) : NULL;
    int is_done = !PyErr_Occurred();
    if (found) {
        is_done = add_text(text, PyObject_CallFunctionObjArgs(wish(spot, NAMED), found, NULL));
    } else if (is_done && (found = PyDict_GetItemWithError(wish(spot, STATES), key))) {
        /* Another tensor may have got the place in memory of one that has gone. */
        if (PyWeakref_GetObject(PyTuple_GetItem(found, 0)) == tensor) {
            PyObject *field = PyTuple_GetItem(found, 1);
            Py_INCREF(field);
            is_done = add_text(text, field);
        }
    }
    Py_XDECREF(key);
    return is_done && !PyErr_Occurred();
}

/* Whether a tensor is one of a model's parameters with marks of its own. */
static int has_marks(PyObject *tensor)
{
    PyObject *noted = PyObject_GetAttr(tensor, n_dict);
    if (!noted)
        PyErr_Clear();
    int is_some = noted && PyDict_Size(noted) > 0;
    Py_XDECREF(noted);
    return is_some;
}

static int add_element(Text *text, Spot *spot, PyObject *tensor)
{
    long long memory = 0;
    PyObject *fields = fields_of(spot->texts, tensor, wish(spot, MET), wish(spot, KNOWN), &memory);
    Py_ssize_t size = 0;
    const char *own = fields ? PyUnicode_AsUTF8AndSize(fields, &size) : NULL;
    int is_done = 0;
    if (!own)
        goto done;
    /* What depends on the order of the values stands behind a zero byte. */
    size_t own_size = strlen(own);
    const char *more = own_size < (size_t)size ? own + own_size + 1 : "";
    if (!size || strstr(own, "\"Max\": NaN") || has_marks(tensor)) {
        PyObject *place = place_of(spot);
        is_done = place && add_text(text, PyObject_CallFunctionObjArgs(wish(spot, REST), tensor, place, fields, NULL));
        goto done;
    }
    is_done = (wish(spot, GIVEN) == Py_None || note(spot, tensor, own, own_size)) && add(text, "{", 1) &&
              add(text, own, own_size) && (wish(spot, MEMORY) == Py_None || add_shared(text, spot, memory)) &&
              (wish(spot, INPUTS) == Py_None || add_name(text, spot, tensor));
    if (is_done && wish(spot, CHANGED) == Py_True) {
        long long version = version_of(tensor);
        char words[48];
        PyOS_snprintf(words, sizeof words, ", \"version\": %lld", version);
        is_done = !PyErr_Occurred() && (version < 0 || add_words(text, words));
    }
    is_done = is_done && add_words(text, more) && add(text, "}", 1);
done:
    Py_XDECREF(fields);
    return is_done;
}

static int add_value(Text *text, Spot *spot, PyObject *value)
{
    if (is_tensor(spot->texts, value))
        return add_element(text, spot, value);
    if (value == Py_None)
        return add_words(text, "null");
    if (value == Py_True || value == Py_False)
        return add_words(text, value == Py_True ? "{\"type\": \"bool\", \"value\": true}"
                                                : "{\"type\": \"bool\", \"value\": false}");
    if (PyLong_CheckExact(value))
        return add_words(text, "{\"type\": \"int\", \"value\": ") && add_text(text, PyObject_Str(value)) &&
               add(text, "}", 1);
    PyObject *place = place_of(spot);
    return place && add_text(text, PyObject_CallFunctionObjArgs(wish(spot, ONE), value, place, NULL));
}

static int are_wishes(PyObject *wishes)
{
    if (PyTuple_Check(wishes) && PyTuple_Size(wishes) == WISHES)
        return 1;
    PyErr_SetString(PyExc_TypeError, "another tuple of wishes was expected");
    return 0;
}

/* arguments(values, place, wishes) -> a JSON array; their places are "place.0", ... */
PyObject *arguments(PyObject *texts, PyObject *args)
{
    PyObject *values, *prefix, *wishes;
    if (!PyArg_ParseTuple(args, "O!UO", &PyTuple_Type, &values, &prefix, &wishes) || !are_wishes(wishes))
        return NULL;
    Text text;
    text.own = text.room, text.used = 0, text.size = sizeof text.room;
    int is_good = add(&text, "[", 1);
    for (Py_ssize_t i = 0, many = PyTuple_Size(values); is_good && i < many; i++) {
        Spot spot = {texts, wishes, prefix, NULL, i};
        is_good = (!i || add(&text, ", ", 2)) && add_value(&text, &spot, PyTuple_GetItem(values, i));
        Py_XDECREF(spot.place);
    }
    return finished(&text, is_good && add(&text, "]", 1));
}

/* element(tensor, place, wishes) -> a JSON object */
PyObject *element(PyObject *texts, PyObject *args)
{
    PyObject *tensor, *place, *wishes;
    if (!PyArg_ParseTuple(args, "OUO", &tensor, &place, &wishes) || !are_wishes(wishes))
        return NULL;
    Spot spot = {texts, wishes, NULL, place, 0};
    Text text;
    text.own = text.room, text.used = 0, text.size = sizeof text.room;
    return finished(&text, add_element(&text, &spot, tensor));
}

int add_elements(void)
{
    n_version = PyUnicode_InternFromString("_version"), n_dict = PyUnicode_InternFromString("__dict__");
    return n_version && n_dict ? 0 : -1;
}

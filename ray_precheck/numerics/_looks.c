/* The statistics of the values in a tensor's memory as text, and their sketch.

   Comes in: where they begin, how many there are, how they are stored, and a plan where they take no piece
   of memory. Goes out: the text, as bytes. `_texts.c` asks. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

void ends_and_sums(const char *memory, int64_t count, int kind, double *sketch, double *numbers);

enum { BUCKETS = 64, NUMBERS = 10 };

/* How the values lie of a tensor that does not take one piece of memory: how often it repeats each (`expand`), how
   many there are, whether they must be copied, and their sizes and strides. */
enum { REPEATED, COUNT, IS_COPIED, SIZES };

/* Copy `sizes[0]` x `sizes[1]` x ... elements, whose strides follow the sizes, and return where the copy ends. */
static char *gathered(const char *from, const int64_t *sizes, int dims, int all_dims, int width, char *to)
{
    int64_t size = dims ? sizes[0] : 1, stride = dims ? sizes[all_dims] * width : 0;
    if (dims > 1) {
        for (int64_t i = 0; i < size; i++)
            to = gathered(from + i * stride, sizes + 1, dims - 1, all_dims, width, to);
        return to;
    }
    if (stride == width) {
        memcpy(to, from, size * width);
    } else if (width == 4) {
        for (int64_t i = 0; i < size; i++)
            memcpy(to + 4 * i, from + i * stride, 4);
    } else {
        for (int64_t i = 0; i < size; i++)
            memcpy(to + 2 * i, from + i * stride, 2);
    }
    return to + size * width;
}

/* The ends and the sums of values of which a plan says how they lie; 0 where there is no memory for a copy. */
static int planned_sums(const char *memory, int kind, const int64_t *plan, int dims, double *numbers)
{
    char *copy = NULL;
    if (plan[IS_COPIED]) {
        int width = kind ? 2 : 4;
        if (!(copy = PyMem_Malloc(plan[COUNT] * width))) {
            PyErr_NoMemory();
            return 0;
        }
        gathered(memory, plan + SIZES, dims, dims, width, copy);
    }
    ends_and_sums(copy ? copy : memory, plan[COUNT], kind, NULL, numbers);
    numbers[3] *= (double)plan[REPEATED];
    PyMem_Free(copy);
    return 1;
}

/* Four statistics as text, of a tensor with or without dimensions. `words` are two functions, which make JSON of
   four numbers that are not all finite, and of a list, and what stands before each number. */
static PyObject *text_of(double *numbers, int64_t count, int is_single, PyObject **words)
{
    PyObject *floats = NULL, *raw = NULL, *text = NULL;
    numbers[2] = is_single ? numbers[0] : numbers[2] / (double)count;
    numbers[3] = is_single ? numbers[0] : sqrt(numbers[3]);
    if (!(isfinite(numbers[0]) && isfinite(numbers[1]) && isfinite(numbers[2]) && isfinite(numbers[3]))) {
        PyObject *told = PyObject_CallFunction(words[0], "dddd", numbers[0], numbers[1], numbers[2],
                                                numbers[3]);
        text = told ? PyUnicode_AsUTF8String(told) : NULL;
        Py_XDECREF(told);
        return text;
    }
    if (!(floats = PyList_New(4)))
        return NULL;
    for (int i = 0; i < 4; i++) {
        PyObject *each = PyFloat_FromDouble(numbers[i]);
        if (!each || PyList_SetItem(floats, i, each) < 0)
            goto done;
    }
    char *own, room[512], *to = room;
    Py_ssize_t length;
    if (!(raw = PyObject_CallFunctionObjArgs(words[1], floats, NULL)) ||
        PyBytes_AsStringAndSize(raw, &own, &length) < 0)
        goto done;
    /* [1.0,2.0,3.0,4.0] */
    char *from = own + 1;
    for (int i = 0; i < 4 && length < 256; i++) {
        char *label;
        Py_ssize_t some;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(words[2], i), &label, &some) < 0 || some > 32)
            goto done;
        memcpy(to, label, some), to += some;
        while (from < own + length - 1 && *from != ',')
            *to++ = *from++;
        from++;
    }
    text = PyBytes_FromStringAndSize(room, to - room);
done:
    Py_DECREF(floats);
    Py_XDECREF(raw);
    return text;
}

/* The statistics of values as text, which are looked at now; a plan says how they lie where they take no piece of
   memory. */
PyObject *looked_at(const char *memory, int64_t count, int kind, const int64_t *plan, int dims, PyObject **words)
{
    double numbers[4];
    if (plan) {
        count = plan[COUNT];
        if (!planned_sums(memory, kind, plan, dims, numbers))
            return NULL;
    } else {
        ends_and_sums(memory, count, kind, NULL, numbers);
    }
    return text_of(numbers, count, !dims, words);
}

/* The same of values whose sketch is wanted, too: behind a zero byte follows what `take` gives, a function of Python,
   for the kind, what `ends_and_sums` counts, the largest bucket and the 64 buckets as float32. None where it cannot
   say it of these. */
PyObject *sketched_at(const char *memory, int64_t count, int kind, int dims, PyObject *take, PyObject **words)
{
    double numbers[NUMBERS], buckets[BUCKETS] = {0}, largest = 0;
    float row[BUCKETS];
    ends_and_sums(memory, count, kind, buckets, numbers);
    for (int i = 0; i < BUCKETS; i++) {
        double size = fabs(buckets[i]);
        row[i] = (float)buckets[i];
        largest = size > largest || isnan(size) ? size : largest;
    }
    PyObject *more = PyObject_CallFunction(
        take, "idLLLLLdy#", kind, numbers[4], (long long)numbers[5], (long long)numbers[6], (long long)numbers[7],
        (long long)numbers[8], (long long)numbers[9], largest, (const char *)row, (Py_ssize_t)sizeof row);
    if (!more || more == Py_None)
        return more;
    PyObject *rest = PyUnicode_AsUTF8String(more), *text = NULL;
    Py_DECREF(more);
    PyObject *statistics = rest ? text_of(numbers, count, !dims, words) : NULL;
    if (statistics)
        text = PyBytes_FromFormat("%s%c%s", PyBytes_AsString(statistics), 0, PyBytes_AsString(rest));
    Py_XDECREF(statistics);
    Py_XDECREF(rest);
    return text;
}

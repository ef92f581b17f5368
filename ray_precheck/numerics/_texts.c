/* What a record says of a tensor: its kind, its statistics, how it lies in memory.

   Comes in: a tensor of PyTorch, of which Python's own attributes are asked. Goes out: the fields of its record,
   as `capture.pytorch.tensors.text` writes them, or "" for a tensor that must be looked at in another way. It
   stands here because each tensor of each call comes here: what Python needs for it takes 5 to 15 us in a
   training, whose memory leaves nothing of the interpreter in the cache.

   Statistics of many values are remembered by address, size and version, as long as the tensor that was looked
   at lives and a glimpse of the memory, 32 pieces of 64 bytes, shows the same (`memory` says why). Where Python
   takes the looks (of sketches, which have the order of the values in them), texts of all sizes are remembered,
   by the shape, too; of up to 16 KB all bytes are compared. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* of _looks.c */
PyObject *looked_at(const char *memory, int64_t count, int kind, const int64_t *plan, int dims, PyObject **words);
PyObject *sketched_at(const char *memory, int64_t count, int kind, int dims, PyObject *take, PyObject **words);
/* of _elements.c */
PyObject *arguments(PyObject *texts, PyObject *args);
PyObject *element(PyObject *texts, PyObject *args);

enum { PIECE = 64, PIECES = 32, WHOLE = 1 << 14, MOST_KINDS = 4096, MOST_ENTRIES = 1 << 16 };
typedef struct {
    uint64_t address, glimpse;
    int64_t count;
    long long version, shape; /* the hash of the shape where a look depends on it, else 0 */
    int kind;
    PyObject *holder, *text; /* a weak reference, and bytes; NULL in an empty place */
} Entry;

typedef struct {
    PyObject_HEAD
    PyObject *types, *kind_of, *stride_text, *dumps, *words, *labels, *look, *take;
    PyObject *kinds, *strides;
    long long small;
    Entry *entries;
    size_t room, used;
} Texts;

static PyObject *n_dtype, *n_layout, *n_is_cpu, *n_shape, *n_requires_grad, *n_version;
static PyObject *n_is_contiguous, *n_is_neg, *n_data_ptr, *n_offset, *n_stride, *n_storage, *n_resizable;
static PyObject *n_nbytes, *empty;

static size_t place_of(uint64_t address) { return (size_t)((address >> 6) * 0x9E3779B97F4A7C15u >> 20); }

static Entry *find(Texts *self, const Entry *like)
{
    if (!self->room)
        return NULL;
    for (size_t i = place_of(like->address);; i++) {
        Entry *entry = &self->entries[i & (self->room - 1)];
        if (!entry->text)
            return NULL;
        if (entry->address == like->address && entry->count == like->count && entry->kind == like->kind &&
            entry->shape == like->shape)
            return entry;
    }
}

static void drop(Entry *entry)
{
    PyObject *holder = entry->holder, *text = entry->text;
    entry->holder = entry->text = NULL;
    Py_XDECREF(holder);
    Py_XDECREF(text);
}

static void put(Texts *self, Entry new)
{
    size_t i = place_of(new.address);
    while (self->entries[i & (self->room - 1)].text)
        i++;
    self->entries[i & (self->room - 1)] = new;
    self->used++;
}

/* Keep the entries that do not lie between two addresses, in a table with so much room. */
static int keep(Texts *self, uint64_t begin, uint64_t end, size_t room)
{
    Entry *before = self->entries;
    size_t many = self->room;
    Entry *after = PyMem_Calloc(room, sizeof(Entry));
    if (!after) {
        PyErr_NoMemory();
        return 0;
    }
    self->entries = after, self->room = room, self->used = 0;
    for (size_t i = 0; i < many; i++)
        if (before[i].text && (before[i].address < begin || before[i].address >= end))
            put(self, before[i]), before[i].text = before[i].holder = NULL;
    for (size_t i = 0; i < many; i++)
        drop(&before[i]);
    PyMem_Free(before);
    return 1;
}

/* Remember a text; a failure is no error, and the next look is made anew. */
static void remember(Texts *self, Entry new, PyObject *tensor)
{
    Entry *old = find(self, &new);
    new.holder = PyWeakref_NewRef(tensor, NULL);
    if (!new.holder) {
        PyErr_Clear();
        return;
    }
    Py_INCREF(new.text);
    if (old) {
        Entry gone = *old;
        *old = new;
        drop(&gone);
        return;
    }
    if (self->used >= MOST_ENTRIES && !keep(self, 0, UINT64_MAX, 1 << 10))
        PyErr_Clear();
    if (2 * self->used >= self->room && !keep(self, 0, 0, self->room ? 2 * self->room : 1 << 10)) {
        PyErr_Clear();
        drop(&new);
        return;
    }
    put(self, new);
}

static void mix_in(uint64_t *lanes, uint64_t address, int64_t size)
{
    uint64_t words[8] = {0};
    memcpy(words, (const char *)(uintptr_t)address, size < PIECE ? size : PIECE);
    for (int i = 0; i < 8; i++) {
        lanes[i] = (lanes[i] ^ words[i]) * 0x9E3779B97F4A7C15u;
        lanes[i] ^= lanes[i] >> 32;
    }
}

static uint64_t glimpse_of(uint64_t address, int64_t size)
{
    /* A multiple of the largest element's size, and not of the size of rows, which are powers of two. */
    int64_t step = (size - PIECE) / (PIECES - 1) / 16 * 16;
    uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8}, found = 0;
    step -= 16 * (step % 32 == 0);
    if (size <= WHOLE)
        for (int64_t place = 0; place < size; place += PIECE)
            mix_in(lanes, address + place, size - place);
    else
        for (int piece = 0; piece < PIECES; piece++)
            mix_in(lanes, address + piece * step, PIECE);
    for (int i = 0; i < 8; i++) {
        found = (found ^ lanes[i]) * 0xBF58476D1CE4E5B9u;
        found ^= found >> 29;
    }
    return found;
}

/* A method without arguments; -1 with an exception, as of a method that returns a truth value. */
static long long number_from(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_CallMethodObjArgs(object, name, NULL);
    if (!found)
        return -1;
    long long number = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return number;
}

/* The text of a look that Python takes: statistics, a zero byte, what follows the other fields. */
static PyObject *told(Texts *self, PyObject *tensor)
{
    PyObject *words = PyObject_CallFunctionObjArgs(self->look, tensor, NULL);
    PyObject *text = words ? PyUnicode_AsUTF8String(words) : NULL;
    Py_XDECREF(words);
    return text;
}

/* Whether torch may give the memory of a tensor to nobody else: numpy or a file may not have it, too. */
static int is_resizable(PyObject *tensor)
{
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, n_storage, NULL);
    long long found = storage ? number_from(storage, n_resizable) : -1;
    Py_XDECREF(storage);
    return found == 1;
}

static int still_holds(const Entry *entry, PyObject *tensor)
{
    PyObject *holder = PyWeakref_GetObject(entry->holder);
    uint64_t address = entry->address;
    if (holder == tensor)
        return 1;
    if (!holder || holder == Py_None)
        return 0;
    Py_INCREF(holder);
    long long found = number_from(holder, n_data_ptr);
    Py_DECREF(holder);
    return (uint64_t)found == address;
}

/* Whether the storage of a tensor was known: by identity, each behind a weak reference. It is from now on. */
static int was_known(PyObject *tensor, PyObject *known)
{
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, n_storage, NULL);
    PyObject *key = storage ? PyLong_FromVoidPtr(storage) : NULL;
    PyObject *found = key ? PyDict_GetItemWithError(known, key) : NULL;
    int is_same = found && PyWeakref_GetObject(found) == storage;
    if (key && !is_same && !PyErr_Occurred()) {
        PyObject *behind = PyWeakref_NewRef(storage, NULL);
        if (behind)
            PyDict_SetItem(known, key, behind);
        Py_XDECREF(behind);
    }
    Py_XDECREF(key);
    Py_XDECREF(storage);
    return is_same;
}

/* The statistics of a tensor as text, known or looked at. */
static PyObject *statistics_of(Texts *self, PyObject *tensor, Entry new, int64_t size, PyObject *met,
                               PyObject *known, const int64_t *plan, int dims)
{
    int is_kept = size > self->small && !plan;
    if (is_kept) {
        PyObject *version = PyObject_GetAttr(tensor, n_version);
        new.version = version ? PyLong_AsLongLong(version) : -1;
        Py_XDECREF(version);
        is_kept = !PyErr_Occurred() && is_resizable(tensor);
        PyErr_Clear(); /* an inference tensor has no version */
    }
    if (is_kept) {
        new.glimpse = glimpse_of(new.address, size);
        Entry *entry = find(self, &new);
        if (entry && entry->version == new.version && entry->glimpse == new.glimpse) {
            PyObject *text = entry->text;
            Py_INCREF(text);
            if (still_holds(entry, tensor))
                return text;
            Py_DECREF(text);
            PyErr_Clear();
        }
    }
    int is_met = known != Py_None && was_known(tensor, known);
    if (PyErr_Occurred())
        return NULL;
    if (met != Py_None && !is_met) {
        PyObject *done = PyObject_CallFunctionObjArgs(met, tensor, NULL);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    PyObject *words[] = {self->words, self->dumps, self->labels};
    const char *memory = (const char *)(uintptr_t)new.address;
    if (self->look == Py_None) {
        new.text = looked_at(memory, new.count, new.kind, plan, dims, words);
    } else {
        new.text = sketched_at(memory, new.count, new.kind, dims, self->take, words);
        if (new.text == Py_None) {
            Py_DECREF(Py_None);
            new.text = told(self, tensor);
        }
    }
    if (new.text && is_kept)
        remember(self, new, tensor);
    return new.text;
}

/* What a table has for a key, which a function makes of one or two things where it has nothing; borrowed. */
static PyObject *table_entry(PyObject *table, PyObject *key, PyObject *make, PyObject *one, PyObject *other)
{
    PyObject *found = PyDict_GetItemWithError(table, key);
    if (found || PyErr_Occurred())
        return found;
    if (PyDict_Size(table) >= MOST_KINDS)
        PyDict_Clear(table);
    PyObject *made = PyObject_CallFunctionObjArgs(make, one, other, NULL);
    if (!made)
        return NULL;
    int failed = PyDict_SetItem(table, key, made);
    Py_DECREF(made);
    return failed ? NULL : made;
}

static PyObject *joined(PyObject *const *parts, int many, long long offset)
{
    char room[1024], *to = room, *more = NULL;
    for (int i = 0; i < many; i++) {
        char *own;
        Py_ssize_t length;
        if (!parts[i])
            continue;
        if (PyBytes_AsStringAndSize(parts[i], &own, &length) < 0)
            return NULL;
        if (to + length > room + sizeof room - 64) {
            Py_INCREF(empty);
            return empty;
        }
        char *end = i == 1 ? memchr(own, 0, length) : NULL;
        if (end)
            more = end, length = end - own;
        memcpy(to, own, length), to += length;
    }
    if (offset)
        to += PyOS_snprintf(to, 64, ", \"offset\": %lld", offset);
    if (more) {
        size_t length = strlen(more + 1) + 1;
        if (to + length > room + sizeof room) {
            Py_INCREF(empty);
            return empty;
        }
        memcpy(to, more, length), to += length;
    }
    return PyUnicode_DecodeUTF8(room, to - room, NULL);
}

/* The fields of a tensor whose kind is known: (before, behind, kind, count, bytes, dims); `memory` becomes where its
   storage begins. */
static PyObject *described(Texts *self, PyObject *tensor, PyObject *shape, PyObject *kind, PyObject *met,
                           PyObject *known, long long *memory)
{
    PyObject *parts[4] = {PyTuple_GetItem(kind, 0), NULL, PyTuple_GetItem(kind, 1), NULL}, *layout = NULL;
    const int64_t *plan = NULL;
    Entry new = {0};
    new.kind = (int)PyLong_AsLong(PyTuple_GetItem(kind, 2));
    new.count = PyLong_AsLongLong(PyTuple_GetItem(kind, 3));
    int64_t size = PyLong_AsLongLong(PyTuple_GetItem(kind, 4));
    int dims = (int)PyLong_AsLong(PyTuple_GetItem(kind, 5));
    PyObject *text = NULL;
    long long is_flat = number_from(tensor, n_is_contiguous);
    long long is_negative = is_flat < 0 ? -1 : number_from(tensor, n_is_neg);
    long long address = is_negative < 0 ? -1 : number_from(tensor, n_data_ptr);
    if (address == -1 && PyErr_Occurred())
        return NULL;
    if (is_negative || !address)
        goto other;
    if (self->look != Py_None) {
        if (!is_flat)
            goto other;
        new.shape = PyObject_Hash(shape);
    }
    if (!is_flat) {
        PyObject *stride = PyObject_CallMethodObjArgs(tensor, n_stride, NULL);
        PyObject *key = stride ? PyTuple_Pack(2, shape, stride) : NULL;
        layout = key ? table_entry(self->strides, key, self->stride_text, shape, stride) : NULL;
        Py_XINCREF(layout);
        Py_XDECREF(key);
        Py_XDECREF(stride);
        if (!layout)
            return NULL;
        char *planned = NULL;
        if (layout != Py_None) {
            parts[3] = PyTuple_GetItem(layout, 0);
            planned = parts[3] ? PyBytes_AsString(PyTuple_GetItem(layout, 1)) : NULL;
        }
        if (!planned) {
            Py_DECREF(layout);
            if (PyErr_Occurred())
                return NULL;
            goto other;
        }
        if (PyBytes_Size(PyTuple_GetItem(layout, 1)))
            plan = (const int64_t *)planned;
    }
    new.address = (uint64_t)address;
    parts[1] = statistics_of(self, tensor, new, size, met, known, plan, dims);
    long long offset = parts[1] ? number_from(tensor, n_offset) : -1;
    if (offset >= 0)
        text = joined(parts, 4, offset);
    *memory = address - offset * (new.kind ? 2 : 4);
    Py_XDECREF(parts[1]);
    Py_XDECREF(layout);
    return text;
other:
    Py_INCREF(empty);
    return empty;
}

/* Whether a value is a tensor of one of torch's own two classes. */
int is_tensor(PyObject *texts, PyObject *value)
{
    PyObject *type = (PyObject *)Py_TYPE(value), *types = ((Texts *)texts)->types;
    return type == PyTuple_GetItem(types, 0) || type == PyTuple_GetItem(types, 1);
}

/* The fields of a tensor, or "", and where its memory begins. `met` is called with one that is looked at, and whose
   storage is not `known`. */
PyObject *fields_of(PyObject *texts, PyObject *tensor, PyObject *met, PyObject *known, long long *memory)
{
    Texts *self = (Texts *)texts;
    PyObject *names[] = {n_dtype, n_layout, n_is_cpu, n_shape, n_requires_grad};
    PyObject *text = NULL, *key;
    if (!is_tensor(texts, tensor)) {
        Py_INCREF(empty);
        return empty;
    }
    if (!(key = PyTuple_New(5)))
        return NULL;
    for (int i = 0; i < 5; i++) {
        PyObject *fact = PyObject_GetAttr(tensor, names[i]);
        if (!fact)
            goto done;
        PyTuple_SetItem(key, i, fact);
    }
    PyObject *kind = table_entry(self->kinds, key, self->kind_of, tensor, NULL);
    if (!kind)
        goto done;
    Py_INCREF(kind);
    if (kind == Py_None)
        Py_INCREF(text = empty);
    else
        text = described(self, tensor, PyTuple_GetItem(key, 3), kind, met, known, memory);
    Py_DECREF(kind);
done:
    Py_DECREF(key);
    /* A transform of torch.func has wrapped a tensor without memory, or a size is a symbol. */
    if (!text && (PyErr_ExceptionMatches(PyExc_RuntimeError) || PyErr_ExceptionMatches(PyExc_TypeError))) {
        PyErr_Clear();
        Py_INCREF(text = empty);
    }
    return text;
}

static PyObject *fields(PyObject *self, PyObject *args)
{
    PyObject *tensor, *met;
    long long memory;
    if (!PyArg_UnpackTuple(args, "fields", 2, 2, &tensor, &met))
        return NULL;
    return fields_of(self, tensor, met, Py_None, &memory);
}

static PyObject *fields_of_many(PyObject *self, PyObject *values)
{
    PyObject *list = PySequence_List(values);
    long long memory;
    for (Py_ssize_t i = 0; list && i < PyList_Size(list); i++) {
        PyObject *text = fields_of(self, PyList_GetItem(list, i), Py_None, Py_None, &memory);
        if (!text || PyList_SetItem(list, i, text) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *forget(PyObject *object, PyObject *tensor)
{
    Texts *self = (Texts *)object;
    PyObject *storage = self->used ? PyObject_CallMethodObjArgs(tensor, n_storage, NULL) : NULL;
    if (storage) {
        long long begin = number_from(storage, n_data_ptr);
        long long size = begin == -1 ? -1 : number_from(storage, n_nbytes);
        Py_DECREF(storage);
        if (size > 0 && !keep(self, (uint64_t)begin, (uint64_t)(begin + size), self->room))
            return NULL;
    }
    if (PyErr_Occurred()) { /* it has no memory of its own */
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
            return NULL;
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

static PyObject *forget_all(PyObject *object, PyObject *nothing)
{
    Texts *self = (Texts *)object;
    for (size_t i = 0; i < self->room; i++)
        drop(&self->entries[i]);
    self->used = 0;
    Py_RETURN_NONE;
}

static PyObject *new_texts(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *types, *kind_of, *stride_text, *dumps, *words, *labels, *look, *take;
    long long small;
    if (!PyArg_ParseTuple(args, "O!OOOOO!LOO", &PyTuple_Type, &types, &kind_of, &stride_text, &dumps, &words,
                          &PyTuple_Type, &labels, &small, &look, &take))
        return NULL;
    if (PyTuple_Size(types) != 2 || PyTuple_Size(labels) != 4) {
        PyErr_SetString(PyExc_ValueError, "two types and four labels were expected");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Texts *self = (Texts *)allocate(type, 0);
    if (!self)
        return NULL;
    self->kinds = PyDict_New(), self->strides = PyDict_New();
    PyObject *given[] = {types, kind_of, stride_text, dumps, words, labels, look, take};
    PyObject **own[] = {&self->types, &self->kind_of, &self->stride_text, &self->dumps, &self->words,
                        &self->labels, &self->look, &self->take};
    for (int i = 0; i < 8; i++)
        Py_INCREF(*own[i] = given[i]);
    self->small = small;
    if (!self->kinds || !self->strides) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static void free_texts(PyObject *object)
{
    Texts *self = (Texts *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject *own[] = {self->types, self->kind_of, self->stride_text, self->dumps, self->words,
                       self->labels, self->look, self->take, self->kinds, self->strides};
    for (size_t i = 0; i < self->room; i++)
        drop(&self->entries[i]);
    PyMem_Free(self->entries);
    for (int i = 0; i < 10; i++)
        Py_XDECREF(own[i]);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef methods[] = {
    {"arguments", arguments, METH_VARARGS, NULL},
    {"element", element, METH_VARARGS, NULL},
    {"fields", fields, METH_VARARGS, NULL},
    {"fields_of_many", fields_of_many, METH_O, NULL},
    {"forget", forget, METH_O, NULL},
    {"forget_all", forget_all, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_texts}, {Py_tp_dealloc, free_texts}, {Py_tp_methods, methods}, {0, NULL}};
static PyType_Spec spec = {"ray_precheck.numerics._one_pass.Texts", sizeof(Texts), 0, Py_TPFLAGS_DEFAULT, slots};

int add_texts(PyObject *module)
{
    struct {
        PyObject **own;
        const char *text;
    } names[] = {{&n_dtype, "dtype"},
                 {&n_layout, "layout"},
                 {&n_is_cpu, "is_cpu"},
                 {&n_shape, "shape"},
                 {&n_requires_grad, "requires_grad"},
                 {&n_version, "_version"},
                 {&n_is_contiguous, "is_contiguous"},
                 {&n_is_neg, "is_neg"},
                 {&n_data_ptr, "data_ptr"},
                 {&n_offset, "storage_offset"},
                 {&n_stride, "stride"},
                 {&n_storage, "untyped_storage"},
                 {&n_resizable, "resizable"},
                 {&n_nbytes, "nbytes"},
                 {&empty, ""}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].own = PyUnicode_InternFromString(names[i].text)))
            return -1;
    PyObject *type = PyType_FromSpec(&spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObject(module, "Texts", type);
    if (failed)
        Py_DECREF(type);
    return failed;
}

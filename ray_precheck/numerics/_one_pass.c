/* What a tensor's memory holds, found in one pass over it: its ends, its sums, its health and its sketch.

   Comes in: the address of contiguous values (float32, bfloat16 or float16), their number. Goes out: numbers.
   (The CRC-32 of bytes is found here, too.)
   `ray_precheck.numerics.one_pass` calls this where it was built, and does the same with numpy where not; it
   says what each number means. Values are read in blocks of 8,144 or 2,048, which stay in the core's cache
   while they are looked at in several ways.

   Results do not depend on the width of the machine's vectors: ends are whole numbers in the order of the
   values; the squares of float32 are exact in float64, and sums have 16 lanes, whatever adds them. The lock of
   the interpreter is given up for more than 65,536 values. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int AddUp(const float *values, int64_t count, double *lanes, float *ends, uint32_t *least);
typedef void AddRows(const float *values, const uint16_t (*signs)[32], int rows, uint64_t word, uint32_t flips,
                     double *buckets);
typedef void CountUnusual(const uint32_t *bits, int64_t count, uint32_t normal, int64_t *counts, uint32_t *largest);

int add_texts(PyObject *module);   /* of _texts.c */
int add_borders(PyObject *module); /* of _borders.c */
int add_elements(void);            /* of _elements.c */
int add_frames(PyObject *module);  /* of _frames.c */
/* of _x86.c */
AddUp *wide_add_up(void);
AddRows *wide_add_rows(void);
CountUnusual *wide_count_unusual(void);
int64_t folded_bytes(const unsigned char *from, int64_t size, uint32_t state, unsigned char *left);

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

enum { ROW = 509, ROWS = 16, BLOCK = ROW * ROWS, BUCKETS = 64, LANES = 16, FEW = 512, TILE = 2048 };
enum { FLOAT32, BFLOAT16, FLOAT16 };
#define INFINITE 0x7f800000u
#define SIGN 0x80000000u
#define FREE_LOCK 65536

typedef double Eight __attribute__((vector_size(64)));
typedef float EightFloats __attribute__((vector_size(32)));

typedef struct {
    int32_t top, bottom;     /* in the order of the values, NaN beyond the infinities */
    uint32_t least;          /* the bits of the smallest absolute value */
    Eight sum[2], squares[2];
    int64_t counts[5];       /* below the smallest normal number, zero, NaN, +inf, -inf */
    uint32_t largest;        /* the bits of the largest finite absolute value */
} Found;

static uint32_t fixed_signs[BLOCK + 3];
static uint16_t signs_of_rows[ROWS][32]; /* the same, a bit for each column */

static uint64_t mixed(uint64_t number)
{
    uint64_t word = (number + 1) * 0x9E3779B97F4A7C15u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* Bits as whole numbers in the order of the values, and back. */
static inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

static double value_of(int32_t key)
{
    int32_t bits = ordered(key);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int32_t key_of(float value)
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return ordered(bits);
}

CLONES static void find_ends(const int32_t *bits, int64_t count, Found *found)
{
    int32_t top = found->top, bottom = found->bottom;
    for (int64_t i = 0; i < count; i++) {
        int32_t key = ordered(bits[i]);
        top = key > top ? key : top;
        bottom = key < bottom ? key : bottom;
    }
    found->top = top, found->bottom = bottom;
}

CLONES static void find_least(const uint32_t *bits, int64_t count, uint32_t least, Found *found)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t size = bits[i] & ~SIGN;
        least = size < least ? size : least;
    }
    found->least = least;
}

/* Add values to lanes; `count` is a multiple of 16, as all blocks' but the last. */
CLONES static void add_up(const float *values, int64_t count, Found *found)
{
    Eight s0 = found->sum[0], s1 = found->sum[1];
    Eight q0 = found->squares[0], q1 = found->squares[1];
    for (int64_t i = 0; i < count; i += LANES) {
        EightFloats a, b;
        memcpy(&a, values + i, sizeof a);
        memcpy(&b, values + i + 8, sizeof b);
        Eight x = __builtin_convertvector(a, Eight), y = __builtin_convertvector(b, Eight);
        s0 += x, s1 += y, q0 += x * x, q1 += y * y;
    }
    found->sum[0] = s0, found->sum[1] = s1, found->squares[0] = q0, found->squares[1] = q1;
}

/* Both in one loop, with ends whose zeros have any sign; NULL where the machine has none. */
static AddUp *add_up_wide;

static void ends_and_lanes(const float *values, int64_t count, int health, Found *found)
{
    int64_t whole = count / LANES * LANES, is_done = 0, has_least = 0;
    uint32_t least = UINT32_MAX;
    if (add_up_wide && whole) {
        float ends[2];
        has_least = add_up_wide(values, whole, (double *)found->sum, ends, &least) ? whole : 0;
        int32_t top = key_of(ends[0]), bottom = key_of(ends[1]);
        /* A zero may have the other sign; with a NaN ends say nothing. */
        if (ends[0] != 0 && ends[1] != 0) {
            found->top = top > found->top ? top : found->top;
            found->bottom = bottom < found->bottom ? bottom : found->bottom;
            is_done = whole;
        }
    } else {
        add_up(values, whole, found);
    }
    find_ends((const int32_t *)values + is_done, count - is_done, found);
    if (health)
        find_least((const uint32_t *)values + has_least, count - has_least, least, found);
    if (whole < count) {
        float rest[LANES] = {0};
        memcpy(rest, values + whole, (count - whole) * sizeof(float));
        add_up(rest, LANES, found);
    }
}

/* The same where the machine has it, else NULL. */
static CountUnusual *count_unusual_wide;

CLONES static void count_unusual(const uint32_t *bits, int64_t count, uint32_t normal, Found *found)
{
    uint32_t small = 0, zero = 0, nan = 0, positive = 0, negative = 0, largest = found->largest;
    for (int64_t i = 0; i < count; i++) {
        uint32_t size = bits[i] & 0x7fffffffu;
        uint32_t finite = size < INFINITE ? size : 0;
        small += size < normal;
        zero += size == 0;
        nan += size > INFINITE;
        positive += bits[i] == INFINITE;
        negative += bits[i] == (INFINITE | SIGN);
        largest = finite > largest ? finite : largest;
    }
    int64_t some[] = {small, zero, nan, positive, negative};
    for (int i = 0; i < 5; i++)
        found->counts[i] += some[i];
    found->largest = largest;
}

/* Add the columns of whole rows, with the signs of elements and of rows. */
CLONES static void add_rows(const uint32_t *bits, int first, int last, uint32_t flips, float *sums)
{
    for (int row = first; row < last; row++) {
        const uint32_t *own = bits + (row - first) * ROW, *signs = fixed_signs + row * ROW;
        uint32_t flip = ((flips >> row) & 1) << 31;
        for (int column = 0; column < ROW; column++) {
            union { uint32_t bits; float value; } each = {own[column] ^ signs[column] ^ flip};
            sums[column] += each.value;
        }
    }
}

/* The same to the end, and buckets; NULL where the machine has none. */
static AddRows *add_rows_wide;

static void sketch_rows(const float *values, int64_t block, int first, int last, double *buckets)
{
    float sums[ROW] = {0};
    uint64_t word = mixed((uint64_t)block);
    if (add_rows_wide) {
        add_rows_wide(values, signs_of_rows + first, last - first, word, (uint32_t)(word >> 48) >> first, buckets);
        return;
    }
    add_rows((const uint32_t *)values, first, last, (uint32_t)(word >> 48), sums);
    for (int column = 0; column < ROW; column++)
        buckets[(column + (word >> (column / BUCKETS * 6))) % BUCKETS] += sums[column];
}

/* Add values that lie in one block from a place on; so few that a row is not full are summed in float64. */
static void sketch_some(const float *values, int64_t count, int64_t start, int few, double *buckets)
{
    int64_t block = start / BLOCK;
    int within = (int)(start % BLOCK), end = within + (int)count;
    if (few) {
        uint64_t word = mixed((uint64_t)block);
        for (int i = within; i < end; i++) {
            int row = i / ROW, column = i % ROW;
            int flipped = (fixed_signs[i] >> 31) ^ ((word >> (48 + row)) & 1);
            double value = values[i - within];
            buckets[(column + (word >> (column / BUCKETS * 6))) % BUCKETS] += flipped ? -value : value;
        }
        return;
    }
    int first = within / ROW, last = (end + ROW - 1) / ROW;
    if (within % ROW || end % ROW) {
        float padded[BLOCK];
        int before = within - first * ROW;
        memset(padded, 0, before * sizeof(float));
        memcpy(padded + before, values, count * sizeof(float));
        memset(padded + before + count, 0, (last * ROW - end) * sizeof(float));
        sketch_rows(padded, block, first, last, buckets);
    } else {
        sketch_rows(values, block, first, last, buckets);
    }
}

CLONES static void widen_bfloat16(const uint16_t *halves, int64_t count, uint32_t *bits)
{
    for (int64_t i = 0; i < count; i++)
        bits[i] = (uint32_t)halves[i] << 16;
}

/* The exponent is moved by a product with 2^112, which is exact, for subnormal numbers too. */
CLONES static void widen_float16(const uint16_t *halves, int64_t count, uint32_t *bits)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t half = halves[i], size = half & 0x7fff;
        union { uint32_t bits; float value; } each = {size << 13};
        each.value *= 0x1p112f;
        bits[i] = each.bits | (size >= 0x7c00 ? INFINITE : 0) | ((half & 0x8000) << 16);
    }
}

static const float *as_floats(const char *memory, int64_t begin, int64_t count, int kind, float *room)
{
    if (kind == FLOAT32)
        return (const float *)memory + begin;
    const uint16_t *halves = (const uint16_t *)memory + begin;
    (kind == BFLOAT16 ? widen_bfloat16 : widen_float16)(halves, count, (uint32_t *)room);
    return room;
}

static const uint32_t smallest_normal[] = {0x00800000u, 0x00800000u, 0x38800000u};

static double folded(const Eight *lanes)
{
    Eight eight = lanes[0] + lanes[1];
    double four[4], two[2];
    for (int i = 0; i < 4; i++)
        four[i] = eight[i] + eight[i + 4];
    for (int i = 0; i < 2; i++)
        two[i] = four[i] + four[i + 2];
    return two[0] + two[1];
}

/* Look at the health of a block whose own ends were found. */
static void find_health(const uint32_t *bits, int64_t count, uint32_t normal, Found *found)
{
    int is_unusual = found->least < normal || found->top >= (int32_t)INFINITE ||
                     found->bottom <= ordered((int32_t)(INFINITE | SIGN)) || isnan(folded(found->squares));
    if (is_unusual) {
        if (count_unusual_wide)
            count_unusual_wide(bits, count, normal, found->counts, &found->largest);
        else
            count_unusual(bits, count, normal, found);
        return;
    }
    uint32_t top = ordered(found->top) & ~SIGN, bottom = ordered(found->bottom) & ~SIGN;
    found->largest = top > found->largest ? top : found->largest;
    found->largest = bottom > found->largest ? bottom : found->largest;
}

static void measure(const char *memory, int64_t count, int kind, int health, double *sketch, Found *found)
{
    float room[BLOCK];
    int32_t top = INT32_MIN, bottom = INT32_MAX;
    memset(found, 0, sizeof *found);
    for (int64_t begin = 0, step = sketch ? BLOCK : TILE; begin < count; begin += step) {
        int64_t some = count - begin < step ? count - begin : step;
        const float *values = as_floats(memory, begin, some, kind, room);
        found->top = INT32_MIN, found->bottom = INT32_MAX;
        ends_and_lanes(values, some, health, found);
        if (health)
            find_health((const uint32_t *)values, some, smallest_normal[kind], found);
        if (sketch)
            sketch_some(values, some, begin, count <= FEW, sketch);
        top = found->top > top ? found->top : top;
        bottom = found->bottom < bottom ? found->bottom : bottom;
    }
    found->top = top, found->bottom = bottom;
    if (isnan(folded(found->squares)))
        found->top = found->bottom = ordered(0x7fc00000);
}

static int numbers_of(PyObject *const *args, Py_ssize_t given, int wanted, long long *numbers)
{
    if (given != wanted) {
        PyErr_SetString(PyExc_TypeError, "another number of arguments was expected");
        return 0;
    }
    for (int i = 0; i < wanted; i++) {
        numbers[i] = PyLong_AsLongLong(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static int is_readable(long long address, long long count, long long kind)
{
    if (address > 0 && count > 0 && kind >= FLOAT32 && kind <= FLOAT16)
        return 1;
    PyErr_SetString(PyExc_ValueError, "no values of a kind that is known");
    return 0;
}

/* The largest and the smallest value, the sum and the sum of squares; where 64 zeros are given for a sketch, too, also
   the largest finite absolute value, and how many are below the smallest normal one, zero, NaN, +inf and -inf. */
void ends_and_sums(const char *memory, int64_t count, int kind, double *sketch, double *numbers)
{
    Found found;
    if (count > FREE_LOCK) {
        Py_BEGIN_ALLOW_THREADS
        measure(memory, count, kind, sketch != NULL, sketch, &found);
        Py_END_ALLOW_THREADS
    } else {
        measure(memory, count, kind, sketch != NULL, sketch, &found);
    }
    numbers[0] = value_of(found.top), numbers[1] = value_of(found.bottom);
    numbers[2] = folded(found.sum), numbers[3] = folded(found.squares);
    if (sketch) {
        numbers[4] = value_of((int32_t)found.largest);
        for (int i = 0; i < 5; i++)
            numbers[5 + i] = (double)found.counts[i];
    }
}

/* sums(address, count, kind) -> (max, min, sum, sum of squares) */
static PyObject *sums(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long numbers[3];
    double found[4];
    if (!numbers_of(args, given, 3, numbers) || !is_readable(numbers[0], numbers[1], numbers[2]))
        return NULL;
    ends_and_sums((const char *)(uintptr_t)numbers[0], numbers[1], (int)numbers[2], NULL, found);
    return Py_BuildValue("(dddd)", found[0], found[1], found[2], found[3]);
}

/* everything(address, count, kind) -> the same, and the counts of values below the smallest normal one, zeros,
   NaN, +inf and -inf, the largest finite absolute value, and 64 float64 of the sketch as bytes */
static PyObject *everything(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long numbers[3];
    double buckets[BUCKETS] = {0};
    Found found;
    if (!numbers_of(args, given, 3, numbers) || !is_readable(numbers[0], numbers[1], numbers[2]))
        return NULL;
    const char *memory = (const char *)(uintptr_t)numbers[0];
    Py_BEGIN_ALLOW_THREADS
    measure(memory, numbers[1], (int)numbers[2], 1, buckets, &found);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(ddddLLLLLdy#)", value_of(found.top), value_of(found.bottom), folded(found.sum),
                         folded(found.squares), (long long)found.counts[0], (long long)found.counts[1],
                         (long long)found.counts[2], (long long)found.counts[3], (long long)found.counts[4],
                         value_of((int32_t)found.largest), (const char *)buckets, (Py_ssize_t)sizeof buckets);
}

/* sketch(address, count, kind, global index of the first, where 64 float64 are added to) */
static PyObject *sketch(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long numbers[5];
    if (!numbers_of(args, given, 5, numbers) || !is_readable(numbers[0], numbers[1], numbers[2]))
        return NULL;
    const char *memory = (const char *)(uintptr_t)numbers[0];
    double *buckets = (double *)(uintptr_t)numbers[4];
    Py_BEGIN_ALLOW_THREADS
    float room[BLOCK];
    int64_t start = numbers[3], end = start + numbers[1];
    for (int64_t begin = start; begin < end;) {
        int64_t border = (begin / BLOCK + 1) * BLOCK, some = (border < end ? border : end) - begin;
        const float *values = as_floats(memory, begin - start, some, (int)numbers[2], room);
        sketch_some(values, some, begin, end <= FEW, buckets);
        begin += some;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static uint32_t remainders[256]; /* of each byte, by the polynomial of CRC-32 */

static uint32_t next_state(const unsigned char *from, int64_t size, uint32_t state)
{
    for (int64_t i = 0; i < size; i++)
        state = state >> 8 ^ remainders[(state ^ from[i]) & 0xff];
    return state;
}

/* crc32(address, bytes) -> what zlib.crc32 gives; -1 where zlib is quicker */
static PyObject *crc32(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long numbers[2], found = -1;
    if (!numbers_of(args, given, 2, numbers))
        return NULL;
    const unsigned char *memory = (const unsigned char *)(uintptr_t)numbers[0];
    unsigned char left[16];
    Py_BEGIN_ALLOW_THREADS
    int64_t done = folded_bytes(memory, numbers[1], 0xffffffffu, left);
    if (done)
        found = (uint32_t)~next_state(memory + done, numbers[1] - done, next_state(left, 16, 0));
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(found);
}

static PyMethodDef methods[] = {
    {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL, NULL},
    {"sums", (PyCFunction)(void (*)(void))sums, METH_FASTCALL, NULL},
    {"everything", (PyCFunction)(void (*)(void))everything, METH_FASTCALL, NULL},
    {"sketch", (PyCFunction)(void (*)(void))sketch, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_one_pass", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__one_pass(void)
{
    for (int i = 0; i < BLOCK; i++)
        fixed_signs[i] = (uint32_t)((mixed(((uint64_t)1 << 62) + i / 64) >> (i % 64)) & 1) << 31;
    for (int i = 0; i < BLOCK; i++)
        signs_of_rows[i / ROW][i % ROW / 16] |= (uint16_t)(fixed_signs[i] >> 31 << i % ROW % 16);
    for (uint32_t i = 0; i < 256; i++) {
        remainders[i] = i;
        for (int bit = 0; bit < 8; bit++)
            remainders[i] = remainders[i] >> 1 ^ (remainders[i] & 1 ? 0xedb88320u : 0);
    }
    add_up_wide = wide_add_up(), add_rows_wide = wide_add_rows();
    count_unusual_wide = wide_count_unusual();
    PyObject *made = PyModule_Create(&module);
    if (made && (add_elements() < 0 || add_texts(made) < 0 || add_borders(made) < 0 || add_frames(made) < 0)) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}

/* The values of a tensor that does not take one piece of memory, side by side.

   Comes in: where it begins, its sizes and strides, the width of its elements (2 or 4 bytes). Goes out: its values
   in the order of its elements. `_texts.c` asks. */
#include <stdint.h>
#include <string.h>

/* Copy `sizes[0]` x `sizes[1]` x ... elements, whose strides follow the sizes, and return where the copy ends. */
char *gathered(const char *from, const int64_t *sizes, int dims, int all_dims, int width, char *to)
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

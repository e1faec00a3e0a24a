#include "text/char_class.h"

#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"

bool char_is_space(uint32_t cp)
{
    return (cp >= 0x9 && cp <= 0xD) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

static uint8_t class_of(uint32_t cp)
{
    uint8_t c = 0;
    if (char_is_space(cp))
        return cp == '\r' || cp == '\n' ? CHAR_SPACE | CHAR_NEWLINE : CHAR_SPACE;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        c = CHAR_LETTER;
        break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        c = CHAR_MARK;
        break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return CHAR_NUMBER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        c = CHAR_PUNCT;
        break;
    default:
        break;
    }
    if ((cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF))
        c |= CHAR_CJK;
    return c;
}

/* The index of a block equal to `block` among the `count` known ones; `count` when there is none. */
static size_t find_block(const uint8_t *blocks, size_t count, const uint8_t *block)
{
    size_t i = count;
    while (i-- > 0)
        if (memcmp(blocks + i * 256, block, 256) == 0)
            return i;
    return count;
}

qr_status char_classes_open(struct char_classes **out, qr_error *err)
{
    size_t blocks = 0, capacity = 512;
    struct char_classes *c = qr_calloc(1, sizeof *c);
    uint8_t *classes = qr_malloc(capacity * 256);
    *out = NULL;
    if (!c || !classes)
        goto no_memory;
    for (uint32_t cp = 0; cp < 0x110000; cp += 256) {
        if (blocks == capacity) {
            uint8_t *more = qr_realloc(classes, capacity * 2 * 256);
            if (!more)
                goto no_memory;
            classes = more;
            capacity *= 2;
        }
        uint8_t *block = classes + blocks * 256;
        for (uint32_t i = 0; i < 256; i++)
            block[i] = class_of(cp + i);
        size_t same = find_block(classes, blocks, block);
        c->block[cp >> 8] = (uint16_t)same;
        if (same == blocks)
            blocks++;
    }
    c->classes = classes;
    *out = c;
    return QR_OK;

no_memory:
    qr_free(c);
    qr_free(classes);
    return qr_fail(err, QR_NO_MEMORY, "no memory for the table of character classes");
}

void char_classes_free(struct char_classes *classes)
{
    if (!classes)
        return;
    qr_free(classes->classes);
    qr_free(classes);
}

#include "cache/images.h"

#include "base/alloc.h"

enum state { STATE_FREE, STATE_COPYING, STATE_READY, STATE_EVICTING };

struct record {
    enum state state;
    bool copying; /* its bytes are being written: also while EVICTING */
    int32_t pins;
    block_id block;        /* filed under; 0 while EVICTING */
    image_id older, newer; /* READY ones by last use; IMAGE_NONE: the end */
    struct image_facts facts;
};

struct images {
    struct blocks *blocks;
    const struct geometry *geometry;
    const struct pool_layout *pool;
    int32_t units, count;  /* units of one image; records */
    struct record *record; /* [count] */
    block_id *unit;        /* [count][units] */
    image_id *of_block;    /* [blocks] the image filed under it */
    image_id *free;        /* free records, the next on top */
    int32_t free_count;
    image_id oldest, newest;
    int32_t ready_unpinned, copying;
    struct images_counters counters;
};

static void orphan(void *user, block_id block);

/* ---- opening ---- */

qr_status images_open(struct blocks *blocks, const struct geometry *g, const struct pool_layout *pool,
                      struct images **out, qr_error *err)
{
    const size_t block_count = (size_t)blocks_usable(blocks) + 1;
    struct images *im = qr_calloc(1, sizeof *im);
    if (!im)
        goto no_memory;
    im->blocks = blocks;
    im->geometry = g;
    im->pool = pool;
    im->units = image_units(g);
    im->count = (int32_t)(blocks_usable(blocks) / im->units);
    im->oldest = im->newest = IMAGE_NONE;
    im->record = qr_calloc((size_t)im->count + 1, sizeof *im->record);
    im->unit = qr_calloc((size_t)im->count + 1, (size_t)im->units * sizeof *im->unit);
    im->of_block = qr_calloc(block_count, sizeof *im->of_block);
    im->free = qr_calloc((size_t)im->count + 1, sizeof *im->free);
    if (!im->record || !im->unit || !im->of_block || !im->free)
        goto no_memory;
    for (size_t i = 0; i < block_count; i++)
        im->of_block[i] = IMAGE_NONE;
    for (image_id id = im->count - 1; id >= 0; id--)
        im->free[im->free_count++] = id;
    blocks_on_evict(blocks, orphan, im);
    *out = im;
    return QR_OK;

no_memory:
    images_close(im);
    return qr_fail(err, QR_NO_MEMORY, "a table of state images beside %zu blocks", block_count);
}

int64_t images_bytes_for(int64_t blocks, const struct geometry *g)
{
    const struct images *im = NULL;
    const int64_t units = image_units(g), count = (blocks - 1) / units + 1;
    const int64_t each = (int64_t)(sizeof *im->record + (size_t)units * sizeof *im->unit + sizeof *im->free);
    return (int64_t)sizeof *im + count * each + blocks * (int64_t)sizeof *im->of_block;
}

void images_close(struct images *im)
{
    if (!im)
        return;
    if (im->record)
        images_forget_all(im);
    blocks_on_evict(im->blocks, NULL, NULL);
    qr_free(im->record);
    qr_free(im->unit);
    qr_free(im->of_block);
    qr_free(im->free);
    qr_free(im);
}

/* ---- ready images by last use ---- */

static void ready_push(struct images *im, image_id id)
{
    struct record *r = &im->record[id];
    r->older = im->newest;
    r->newer = IMAGE_NONE;
    *(im->newest != IMAGE_NONE ? &im->record[im->newest].newer : &im->oldest) = id;
    im->newest = id;
    im->ready_unpinned += r->pins == 0;
}

static void ready_remove(struct images *im, image_id id)
{
    struct record *r = &im->record[id];
    *(r->older != IMAGE_NONE ? &im->record[r->older].newer : &im->oldest) = r->newer;
    *(r->newer != IMAGE_NONE ? &im->record[r->newer].older : &im->newest) = r->older;
    im->ready_unpinned -= r->pins == 0;
}

/* ---- the life of an image ---- */

static block_id *units_of(const struct images *im, image_id id) { return im->unit + (int64_t)id * im->units; }

/* Gives the units back once neither a copy nor a pin needs them. */
static void let_go(struct images *im, image_id id)
{
    struct record *r = &im->record[id];
    if (r->copying || r->pins > 0)
        return;
    blocks_release(im->blocks, units_of(im, id), im->units);
    *r = (struct record){.state = STATE_FREE};
    im->free[im->free_count++] = id;
}

/* Takes an image out of its file. */
static void unfile(struct images *im, image_id id)
{
    struct record *r = &im->record[id];
    if (r->state == STATE_READY)
        ready_remove(im, id);
    im->of_block[r->block] = IMAGE_NONE;
    r->block = 0;
    r->state = STATE_EVICTING;
    let_go(im, id);
}

static void orphan(void *user, block_id block)
{
    struct images *im = user;
    if (im->of_block[block] == IMAGE_NONE)
        return;
    im->counters.orphaned++;
    unfile(im, im->of_block[block]);
}

bool images_evict(struct images *im)
{
    image_id id = im->oldest;
    while (id != IMAGE_NONE && im->record[id].pins > 0)
        id = im->record[id].newer;
    if (id == IMAGE_NONE)
        return false;
    im->counters.evicted++;
    unfile(im, id);
    return true;
}

void images_forget(struct images *im, image_id id)
{
    if (im->record[id].block)
        unfile(im, id);
}

void images_forget_all(struct images *im)
{
    for (image_id id = 0; id < im->count; id++)
        if (im->record[id].state != STATE_FREE)
            images_forget(im, id);
}

/* A free record and its units, or nothing changed. */
static bool make_room(struct images *im)
{
    const int64_t reachable = blocks_free(im->blocks) + images_evictable(im);
    if (reachable < im->units || (!im->free_count && !im->ready_unpinned))
        return false;
    while ((!im->free_count || blocks_unused(im->blocks) < im->units) && images_evict(im))
        continue;
    return true;
}

image_id images_store(struct images *im, block_id block, const struct image_facts *facts)
{
    if (im->count == 0 || !make_room(im)) {
        im->counters.dropped++;
        return IMAGE_NONE;
    }
    if (im->of_block[block] != IMAGE_NONE)
        images_forget(im, im->of_block[block]);
    const image_id id = im->free[--im->free_count];
    blocks_take(im->blocks, im->units, units_of(im, id));
    im->record[id] = (struct record){.state = STATE_COPYING, .copying = true, .block = block, .facts = *facts};
    im->of_block[block] = id;
    im->copying++;
    return id;
}

static void copy_over(struct images *im, image_id id)
{
    im->record[id].copying = false;
    im->copying--;
}

void images_stored(struct images *im, image_id id)
{
    struct record *r = &im->record[id];
    copy_over(im, id);
    if (r->state == STATE_EVICTING) {
        let_go(im, id);
        return;
    }
    r->state = STATE_READY;
    im->counters.kept++;
    ready_push(im, id);
}

void images_abandon(struct images *im, image_id id)
{
    copy_over(im, id);
    if (im->record[id].block)
        unfile(im, id);
    else
        let_go(im, id);
}

void images_pin(struct images *im, image_id id)
{
    ready_remove(im, id);
    im->record[id].pins++;
    ready_push(im, id);
    im->counters.restored++;
}

void images_unpin(struct images *im, image_id id)
{
    struct record *r = &im->record[id];
    r->pins--;
    if (r->state == STATE_EVICTING)
        let_go(im, id);
    else
        im->ready_unpinned += r->pins == 0;
}

int32_t images_copies(const struct images *im, image_id id, int64_t slot, enum image_direction direction,
                      struct cache_copy *out)
{
    return image_copies(im->geometry, im->pool, slot, units_of(im, id), direction, out);
}

/* ---- what others look at ---- */

image_id images_at(const struct images *im, block_id block) { return im->of_block[block]; }

image_id images_find(const struct images *im, block_id block)
{
    const image_id id = im->of_block[block];
    return id != IMAGE_NONE && im->record[id].state == STATE_READY ? id : IMAGE_NONE;
}

const struct image_facts *images_facts(const struct images *im, image_id id) { return &im->record[id].facts; }

int64_t images_evictable(const struct images *im) { return (int64_t)im->ready_unpinned * im->units; }

int64_t images_held(const struct images *im) { return (int64_t)(im->count - im->free_count) * im->units; }

int32_t images_copying(const struct images *im) { return im->copying; }

const struct images_counters *images_counters(const struct images *im) { return &im->counters; }

/* ---- checks ---- */

static qr_status check_record(const struct images *im, image_id id, qr_error *err)
{
    const struct record *r = &im->record[id];
    const bool filed = r->state == STATE_COPYING || r->state == STATE_READY;
    if (filed != (r->block > 0) || (filed && im->of_block[r->block] != id))
        return qr_fail(err, QR_INTERNAL, "image %d in state %d is filed under block %d", id, r->state, r->block);
    if (filed && !blocks_indexed(im->blocks, r->block))
        return qr_fail(err, QR_INTERNAL, "image %d is filed under block %d, which the index does not hold", id,
                       r->block);
    if ((r->state == STATE_COPYING && !r->copying) || (r->state == STATE_READY && r->copying) ||
        (r->state == STATE_EVICTING && !r->copying && r->pins == 0) || r->pins < 0)
        return qr_fail(err, QR_INTERNAL, "image %d in state %d: copying %d, %d pins", id, r->state, r->copying,
                       r->pins);
    for (int32_t i = 0; r->state != STATE_FREE && i < im->units; i++)
        if (blocks_references(im->blocks, units_of(im, id)[i]) != 1 || blocks_indexed(im->blocks, units_of(im, id)[i]))
            return qr_fail(err, QR_INTERNAL, "image %d: its unit %d has %d references", id, units_of(im, id)[i],
                           blocks_references(im->blocks, units_of(im, id)[i]));
    return QR_OK;
}

qr_status images_check(const struct images *im, qr_error *err)
{
    int32_t ready = 0, copying = 0, taken = 0;
    qr_status st = QR_OK;
    for (image_id id = 0; st == QR_OK && id < im->count; id++) {
        const struct record *r = &im->record[id];
        st = check_record(im, id, err);
        ready += r->state == STATE_READY && r->pins == 0;
        copying += r->copying;
        taken += r->state != STATE_FREE;
    }
    if (st != QR_OK)
        return st;
    if (ready != im->ready_unpinned || copying != im->copying || taken != im->count - im->free_count)
        return qr_fail(err, QR_INTERNAL, "images: counted %d evictable, %d copying, %d taken; the books say %d, %d, %d",
                       ready, copying, taken, im->ready_unpinned, im->copying, im->count - im->free_count);
    return QR_OK;
}

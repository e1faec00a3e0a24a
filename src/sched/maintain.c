#include "sched/state.h"

/* ---- what a pass begins with ---- */

void settle(struct sched *s)
{
    for (int32_t i = 0; i < s->settle_count; i++)
        images_unpin(s->images, s->settle[i]);
    s->settle_count = 0;
    for (struct sched_request *r = s->running.first, *next; r; r = next) {
        next = r->list_next;
        if (r->cancelled && r->flights == 0)
            finish_request(s, r, FINISH_CANCELLED);
    }
}

/* ---- copies ---- */

static void add_copies(struct sched *s, image_id image, int32_t slot, enum image_direction direction)
{
    struct batch *batch = &s->making->batch;
    batch->copy_count += images_copies(s->images, image, slot, direction, s->making->copies + batch->copy_count);
}

void attach_moves(struct sched *s)
{
    for (int32_t i = 0; i < s->move_count; i++)
        s->making->copies[s->making->batch.copy_count++] = s->moves[i];
    s->move_count = 0;
}

void attach_restore(struct sched *s, struct sched_request *r, image_id image)
{
    add_copies(s, image, r->slot, IMAGE_RESTORE);
    s->making->pins[s->making->pin_count++] = image;
    r->restored = true;
}

/* ---- images ---- */

/* The indexed block that ends where the image shall stand; 0: its tokens left the index, or were never published. */
static block_id filed_under(const struct sched *s, const struct sched_request *r)
{
    const int32_t i = r->image_due / s->block - 1;
    if (i >= r->published || i >= r->key_count)
        return 0;
    if (blocks_indexed(s->blocks, r->blocks[i]))
        return r->blocks[i];
    return blocks_find(s->blocks, &r->keys[i], r->tokens + (int64_t)i * s->block);
}

/* The image of an answer moves along with it, until a whole interval lies behind the last one that stays. */
static void roll_answer(struct sched *s, struct sched_request *r, block_id block)
{
    const block_id before = r->answer_block;
    r->answer_block = 0;
    if (r->image_due <= r->prompt)
        return;
    if (before && images_at(s->images, before) != IMAGE_NONE)
        images_forget(s->images, images_at(s->images, before));
    if (s->options.image_interval > 0 && r->image_due - r->last_image >= s->options.image_interval)
        r->last_image = r->image_due;
    else
        r->answer_block = block == r->blocks[r->image_due / s->block - 1] ? block : 0;
}

static void store(struct sched *s, struct sched_request *r)
{
    const block_id block = filed_under(s, r);
    const struct image_facts facts = {.position = r->image_due, .complete = start_complete_layers(s, r, r->image_due)};
    if (!block)
        return;
    const image_id there = images_at(s->images, block);
    if (there != IMAGE_NONE && images_facts(s->images, there)->complete >= facts.complete)
        return;
    blocks_hold(s->blocks, block); /* another request's copy of the same tokens may have become cached */
    const image_id id = images_store(s->images, block, &facts);
    if (id != IMAGE_NONE) {
        roll_answer(s, r, block);
        add_copies(s, id, r->slot, IMAGE_STORE);
        s->making->stores[s->making->store_count++] = id;
    }
    blocks_release(s->blocks, &block, 1);
}

/* The request's state stands at the boundary now, or a few accepted drafts behind it, and its next row would change it. */
static bool is_due(const struct sched_request *r)
{
    return r->image_due >= 0 && r->done >= r->image_due && r->flights == 0;
}

void attach_stores(struct sched *s)
{
    for (struct sched_request *r = s->running.first; r; r = r->list_next)
        if (is_due(r)) {
            if (!r->cancelled)
                store(s, r);
            r->image_due = -1;
        }
    for (struct sched_request *r; (r = s->leaving.first);) {
        store(s, r);
        r->image_due = -1;
        queue_remove(&s->leaving, r);
        give_up(s, r); /* the copy goes before whatever uses the slot next */
        queue_append(&s->over, r);
    }
}

/* Places items one after another by lifetime: the inner loop of vramcast/plans/pool.py, compiled.
 *
 * An item is one size and one or more separate, ascending time spans: one block, or blocks that take turns at one place.
 * Each item in turn goes to a hole between the placed items that live at the same time. vramcast/plans/packing.py is the only
 * caller and has checked the arguments.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Where an item goes: the lowest hole that holds it, the smallest one, or the upper end of the highest one. */
enum fit { LOWEST, SMALLEST, HIGHEST };

struct items {
    int64_t n;
    const int64_t *size;
    const int64_t *first;         /* n + 1: the spans of item i are first[i] to first[i + 1] - 1 */
    const int64_t *birth, *death; /* of each span */
};

struct placed { /* what a scan reads; sorted by `low` */
    int64_t low, high, birth, death, item;
};

static int meet(const struct items *items, int64_t a, int64_t b) {
    int64_t i = items->first[a], j = items->first[b];
    while (i < items->first[a + 1] && j < items->first[b + 1]) {
        if (items->death[i] <= items->birth[j])
            i++;
        else if (items->death[j] <= items->birth[i])
            j++;
        else
            return 1;
    }
    return 0;
}

#define OVERHEAD 32 /* arbitrary: additional cost of placing an item, in entries read */

struct list { /* the items placed so far */
    struct placed *entries;
    int64_t n, looked_at; /* looked_at: entries read by all scans */
};

/* Places one item below `target`, the end of the highest hole; returns its offset, -1 if it does not fit. */
static int64_t place(const struct items *items, struct list *list, int64_t item, int fit, int64_t target) {
    const int64_t size = items->size[item], first = items->first[item], last = items->first[item + 1] - 1;
    const int64_t birth = items->birth[first], death = items->death[last];
    int64_t top = 0, chosen = -1, smallest = INT64_MAX, at = 0, end = list->n, i;
    for (i = 0; i < list->n; i++) {
        const struct placed *other = &list->entries[i];
        if (other->birth >= death || other->death <= birth || other->high <= top) continue;
        const int is_plain = first == last && items->first[other->item] + 1 == items->first[other->item + 1];
        if (!is_plain && !meet(items, item, other->item)) continue;
        const int64_t hole = other->low - top;
        if (hole >= size && fit == HIGHEST) {
            chosen = other->low - size;
        } else if (hole >= size && hole < smallest) {
            chosen = top;
            smallest = hole;
            if (fit == LOWEST) break;
        }
        top = other->high;
    }
    list->looked_at += i + OVERHEAD;
    if (fit == HIGHEST && target - top >= size) chosen = target - size;
    if (chosen < 0) chosen = top; /* on top of all */
    if (chosen > target - size) return -1;
    while (at < end) {
        const int64_t middle = (at + end) / 2;
        if (list->entries[middle].low <= chosen)
            at = middle + 1;
        else
            end = middle;
    }
    memmove(&list->entries[at + 1], &list->entries[at], sizeof *list->entries * (size_t)(list->n - at));
    list->entries[at] = (struct placed){chosen, chosen + size, birth, death, item};
    list->n++;
    return chosen;
}

/* Returns a number from 0 to n - 1, from xorshift64 (Marsaglia 2003); `state` is never 0. */
static int64_t drawn(uint64_t *state, int64_t n) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (int64_t)((*state >> 11) % (uint64_t)n);
}

/* Places all items in `order` below `target`; writes the `offset` of each. The first item that does not fit moves to an
 * earlier place in `order`, drawn from `seed`, and everything from there on is placed again: up to `moves` times, until scans
 * have read `work` entries. `work` becomes the remainder. Returns the number of placed items, -1 if the host ran out of
 * memory.
 */
EXPORT int64_t packing_place(const struct items *items, int64_t *order, const uint8_t *fit, int64_t target, int64_t moves,
                             uint64_t seed, int64_t *work, int64_t *offset) {
    const int64_t n = items->n;
    struct list list = {malloc(sizeof *list.entries * (size_t)(n + 1)), 0, 0};
    int64_t *rank = malloc(sizeof *rank * (size_t)(n + 1)); /* position of each item in `order` */
    int64_t k = 0;
    if (!list.entries || !rank) k = -1;
    while (k >= 0 && k < n) {
        const int64_t item = order[k], found = place(items, &list, item, fit[item], target);
        if (found >= 0) {
            offset[item] = found;
            rank[item] = k++;
            continue;
        }
        if (k == 0 || moves-- <= 0 || list.looked_at >= *work) break;
        const int64_t ahead = drawn(&seed, k);
        memmove(&order[ahead + 1], &order[ahead], sizeof *order * (size_t)(k - ahead));
        order[ahead] = item;
        list.n = 0;
        for (int64_t i = 0; i < k; i++)
            if (rank[list.entries[i].item] < ahead) list.entries[list.n++] = list.entries[i];
        list.looked_at += k;
        k = ahead;
    }
    *work -= list.looked_at;
    free(list.entries);
    free(rank);
    return k;
}

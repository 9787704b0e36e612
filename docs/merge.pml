/* The merge of one channel (subscriptions/domain/merge.py and ChannelFeed), with everything around it that may
 * go wrong: two publishers that race, hints that are lost, doubled, late and out of order, with and without
 * their copies, answers of the database that are old when they come, a client that is cut off and resumes.
 *
 * Promised: the client is given 1, 2, 3, ... N, each once, in order, whatever happens; checked at every step
 * by `give`, and at rest by `monitor`. With -DNO_DEDUPE, -DNO_BACKFILL or -DNO_SWEEP the promise breaks.
 * See merge.md.
 */
#ifndef N
#define N 3
#endif
#ifndef CUTS
#define CUTS 2
#endif
#define AHEAD 2 /* Hot copies kept above the floor; one more and all are let go. */

#define BIT(p) (1 << (p))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

byte head;          /* Seqs 1 to head are committed. */
byte due[N + 1];    /* Hints of a seq that are still on their way. */
byte last;          /* What the client was given last: the cursor it resumes with. */
byte floor_, known; /* The merge. */
short ahead;
byte held;
bool reading, answered, looking;
byte asked, answer, seen;
byte cuts;

inline give(p) {
    assert(p == last + 1); /* Nothing lost, nothing doubled, nothing out of order. */
    last = p
}

inline take() {
    do
    :: floor_ < N && (ahead & BIT(floor_ + 1)) ->
        floor_++;
        ahead = ahead & ~BIT(floor_);
        held--;
        give(floor_)
    :: else -> break
    od
}

inline hear(p, copy) {
    known = MAX(known, p);
    if
    :: p <= floor_ ->
#ifdef NO_DEDUPE
        if
        :: copy -> give(p)
        :: !copy
        fi
#else
        skip
#endif
    :: p > floor_ && copy && !(ahead & BIT(p)) ->
        if
        :: held >= AHEAD -> ahead = 0; held = 0
        :: else
        fi;
        ahead = ahead | BIT(p);
        held++
    :: else
    fi;
    take()
}

inline fill() {
#ifdef NO_DEDUPE
    next = asked + 1;
#else
    next = floor_ + 1;
#endif
    do
    :: next <= answer ->
        if
        :: ahead & BIT(next) -> ahead = ahead & ~BIT(next); held--
        :: else
        fi;
        give(next);
        next++
    :: else -> break
    od;
    floor_ = MAX(floor_, answer);
    known = MAX(known, floor_);
    take()
}

active [2] proctype publisher() {
    byte mine;
    do
    :: atomic { head < N -> head++; mine = head } /* Seq is given under the channel's lock. */
        if
        :: true /* The hint is lost. */
        :: atomic { due[mine] = due[mine] + 1 }
        :: atomic { due[mine] = due[mine] + 2 }
        fi
    :: head == N -> break
    od
}

#define ARRIVES(p) \
    :: atomic { due[p] > 0 -> due[p] = due[p] - 1; copy = true; hear(p, copy) } \
    :: atomic { due[p] > 0 -> due[p] = due[p] - 1; copy = false; hear(p, copy) }

active proctype subscriber() {
    byte next;
    bool copy;
end:
    do
    /* Any hint that is on its way arrives, with its copy or without. */
    ARRIVES(1)
    ARRIVES(2)
    ARRIVES(3)
#if N >= 4
    ARRIVES(4)
#endif
#if N >= 5
    ARRIVES(5)
#endif
#if N >= 6
    ARRIVES(6)
#endif
#ifndef NO_BACKFILL
    :: atomic { !reading && known > floor_ -> reading = true; answered = false; asked = floor_ }
    :: atomic { reading && !answered -> answer = head; answered = true } /* The snapshot. */
    :: atomic { reading && answered -> reading = false; fill() }
#endif
#ifndef NO_SWEEP
    :: atomic { !looking && known < head -> seen = head; looking = true }
    :: atomic { looking -> known = MAX(known, seen); looking = false }
#endif
    :: atomic { /* Cut off; it resumes with its cursor, at a feed that reads the head as it begins. */
        cuts < CUTS -> cuts++;
        floor_ = last; known = MAX(last, head);
        ahead = 0; held = 0; reading = false; looking = false
       }
    od
}

active proctype monitor() {
end:
    timeout -> assert(head == N && last == N) /* At rest the client has everything. */
}

/* The merge of one channel (subscriptions/domain/merge.py and ChannelFeed), with everything around it that may
 * go wrong: two publishers that race, hints that are lost, doubled, late and out of order, with and without
 * their copies, answers of the database that are old when they come, a client that is cut off and resumes.
 *
 * Promised: the client is given 1, 2, 3, ... N, each once, in order, whatever happens; checked at every step
 * by `give`, and at rest by `monitor`. With -DNO_DEDUPE, -DNO_BACKFILL or -DNO_SWEEP the promise breaks.
 *
 * With -DLOG it is the merge of the whole log: ids of transactions that run side by side and may be rolled back,
 * and the watermark (subscriptions/domain/watermark.py, db/functions/watermark.sql) in place of the head. The
 * counter is no exact one: for a moment its page holds an id that nobody has taken. With -DPLAIN_READ a tick
 * reads without the page's lock, and the promise breaks; -DBELIEVES is the watermark that drops nothing then.
 * See merge.md.
 */
#ifndef N
#define N 3
#endif
#ifndef CUTS
#ifdef LOG
#define CUTS 1
#else
#define CUTS 2
#endif
#endif
#define PAGE_AHEAD 2 /* So far ahead of what was taken the counter is logged (32 in Postgres), once in a run. */
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

#ifdef LOG
byte taken;               /* Ids 1 to taken were given out. */
byte page;                /* What stands in the counter's page. */
bool locked;              /* Somebody takes an id. */
bool logged;              /* The page was written ahead of what was taken; it happens once. */
short committed;          /* Ids that can be seen. Those that were taken and rolled back are void. */
byte holders;             /* Who holds the publishing lock. */
byte settled, tick_id, last_tick;
byte candidate, waited_for; /* The one reading that is not settled yet, and whom it waits for. */
bool ticking;
#define HEAD settled
#define BEHIND (settled > floor_)
#define BELOW(p) (BIT(p) - 1)
#ifdef PLAIN_READ
#define MAY_READ true
#else
#define MAY_READ !locked
#endif

inline give(p) {
    assert(committed & BIT(p));
    /* Nothing that can be seen was passed over, nothing doubled, nothing out of order. */
    assert(p > last && !(committed & BELOW(p) & ~BELOW(last + 1)));
    last = p
}
#else
#define HEAD head
#define BEHIND (known > floor_)

inline give(p) {
    assert(p == last + 1); /* Nothing lost, nothing doubled, nothing out of order. */
    last = p
}
#endif

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
#ifdef LOG
        if
        :: committed & BIT(next) -> give(next)
        :: else /* It is void. */
        fi;
#else
        give(next);
#endif
        next++
    :: else -> break
    od;
    floor_ = MAX(floor_, answer);
    known = MAX(known, floor_);
    take()
}

#ifdef LOG
active [N] proctype publisher() { /* A transaction with one id. */
    byte mine;
    holders = holders | BIT(_pid);
    atomic { !locked -> locked = true };
    if
    :: atomic { !logged -> logged = true; page = taken + PAGE_AHEAD }
    :: skip
    fi;
    atomic { taken++; mine = taken; page = taken; locked = false };
    atomic {
        if
        :: committed = committed | BIT(mine);
           assert(mine > floor_); /* Nothing appears below what a reader has passed. */
           if
           :: true /* The hint is lost. */
           :: due[mine] = due[mine] + 1
           fi
        :: true /* It is rolled back. */
        fi;
        holders = holders & ~BIT(_pid)
    }
}

active proctype watermark() {
end:
    do
    :: atomic {
        MAY_READ && !ticking && (settled < taken || candidate) -> tick_id = page; ticking = true
       }
    :: atomic { ticking -> /* Who holds is read after the last id. */
        ticking = false;
        if
#ifndef BELIEVES
        :: tick_id < last_tick && candidate > tick_id -> candidate = 0; waited_for = 0
#endif
        :: else
        fi;
        last_tick = MAX(last_tick, tick_id);
        if
        :: !candidate && tick_id > settled -> candidate = tick_id; waited_for = holders
        :: else
        fi;
        waited_for = waited_for & holders;
        if
        :: candidate && !waited_for -> settled = MAX(settled, candidate); candidate = 0
        :: else
        fi;
        tick_id = 0
       }
    od
}
#else
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
#endif

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
    :: atomic { !reading && BEHIND -> reading = true; answered = false; asked = floor_ }
    :: atomic { reading && !answered -> answer = HEAD; answered = true } /* The snapshot. */
    :: atomic { reading && answered -> reading = false; fill() }
#endif
#if !defined(NO_SWEEP) && !defined(LOG)
    :: atomic { !looking && known < head -> seen = head; looking = true }
    :: atomic { looking -> known = MAX(known, seen); looking = false }
#endif
    :: atomic { /* Cut off; it resumes with its cursor, at a feed that reads the head as it begins. */
        cuts < CUTS -> cuts++;
        floor_ = last; known = MAX(last, HEAD);
        ahead = 0; held = 0; reading = false; looking = false
       }
    od
}

active proctype monitor() {
end:
#ifdef LOG
    timeout -> assert(settled >= taken && !(committed & ~BELOW(last + 1))) /* Everything that is committed. */
#else
    timeout -> assert(head == N && last == N) /* At rest the client has everything. */
#endif
}

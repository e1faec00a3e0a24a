#include "serve/usage.h"

#include "serve/server.h"

int64_t usage_cached(const struct job *job)
{
    int64_t sum = 0;
    for (int i = 0; i < job->count; i += job->answers) { /* the forks of a prompt find what its first has made */
        qr_usage u = job->choices[i].usage;
        if (!job->choices[i].done)
            (void)qr_get_usage(job->server->engine, job->choices[i].handle, &u, NULL);
        sum += u.cached_tokens;
    }
    return sum;
}

void usage_write(const struct job *job, struct json_writer *w)
{
    const int64_t output = job_output_tokens(job), cached = usage_cached(job);
    int64_t reasoning = 0;
    for (int i = 0; i < job->count; i++)
        reasoning += job->choices[i].parsed.reasoning_tokens;
    json_w_key(w, "usage");
    json_w_object(w);
    json_w_member_int(w, "prompt_tokens", job->prompt_tokens);
    json_w_member_int(w, "completion_tokens", output);
    json_w_member_int(w, "total_tokens", job->prompt_tokens + output);
    json_w_key(w, "prompt_tokens_details");
    json_w_object(w);
    json_w_member_int(w, "cached_tokens", cached);
    json_w_end_object(w);
    json_w_key(w, "completion_tokens_details");
    json_w_object(w);
    json_w_member_int(w, "reasoning_tokens", reasoning);
    json_w_end_object(w);
    json_w_member_int(w, "prompt_cache_hit_tokens", cached);
    json_w_member_int(w, "prompt_cache_miss_tokens", job->prompt_tokens - cached);
    json_w_end_object(w);
}

void stamp_write(const struct job *job, const char *object, struct json_writer *w)
{
    json_w_object(w);
    json_w_member_string(w, "id", job->id);
    json_w_member_string(w, "object", object);
    json_w_member_int(w, "created", job->created);
    json_w_member_string(w, "model", job->server->name);
    json_w_member_string(w, "system_fingerprint", job->server->fingerprint);
}

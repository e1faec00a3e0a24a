/* api.h: the handlers that the table of routes names. */
#ifndef QR_SERVE_API_H
#define QR_SERVE_API_H

#include "serve/exchange.h"

enum MHD_Result api_chat(struct exchange *x);
enum MHD_Result api_completions(struct exchange *x);
enum MHD_Result api_messages(struct exchange *x);
enum MHD_Result api_count_tokens(struct exchange *x);
enum MHD_Result api_responses(struct exchange *x);
enum MHD_Result api_models(struct exchange *x);
enum MHD_Result api_model(struct exchange *x);
enum MHD_Result api_tokenize(struct exchange *x);
enum MHD_Result api_tokenizer_info(struct exchange *x);
enum MHD_Result api_detokenize(struct exchange *x);
enum MHD_Result api_render(struct exchange *x);
enum MHD_Result api_health(struct exchange *x);
enum MHD_Result api_ready(struct exchange *x);
enum MHD_Result api_version(struct exchange *x);
enum MHD_Result api_metrics(struct exchange *x);
enum MHD_Result api_page(struct exchange *x);
enum MHD_Result api_sleep(struct exchange *x);
enum MHD_Result api_wake(struct exchange *x);
enum MHD_Result api_changed(struct exchange *x); /* the sleep or the wake is done */

#endif

package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/headgate/simulated/llm"
)

// Handler serves requests for loaded models: OpenAI chat and completions with a fixed text,
// streamed or not, and KServe V2 over REST. It serves no model list and no metrics.
func (r *Runtime) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, q *http.Request) { r.answer(w, q, true) })
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, q *http.Request) { r.answer(w, q, false) })
	mux.HandleFunc("POST /v2/models/{model}/infer", r.infer)
	mux.HandleFunc("GET /v2/models/{model}", r.describe)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		say(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if local, ok := q.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			w.Header().Set(llm.ServedHeader, local.String())
		}
		mux.ServeHTTP(w, q)
	})
}

// words is the text of every answer.
const words = "This is a simulated answer."

type fields = map[string]any

func (r *Runtime) answer(w http.ResponseWriter, q *http.Request, chat bool) {
	body, err := io.ReadAll(q.Body)
	if err != nil || !gjson.ValidBytes(body) {
		say(w, http.StatusBadRequest, fields{"error": fields{
			"message": "the body is not JSON", "type": "BadRequestError", "param": nil,
			"code": http.StatusBadRequest,
		}})
		return
	}
	model := gjson.GetBytes(body, "model").String()
	if !r.Loaded(model) {
		say(w, http.StatusNotFound, fields{"error": fields{
			"message": fmt.Sprintf("The model `%s` does not exist.", model), "type": "NotFoundError", "param": "model",
			"code": http.StatusNotFound,
		}})
		return
	}
	stream := gjson.GetBytes(body, "stream").Bool()
	choice := fields{"index": 0, "finish_reason": "stop"}
	object := "text_completion"
	switch {
	case chat && stream:
		object, choice["delta"] = "chat.completion.chunk", fields{"role": "assistant", "content": words}
	case chat:
		object, choice["message"] = "chat.completion", fields{"role": "assistant", "content": words}
	default:
		choice["text"] = words
	}
	whole := fields{
		"id": "sim-" + model, "object": object, "created": time.Now().Unix(), "model": model, "choices": []any{choice},
		"usage": fields{"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6},
	}
	if !stream {
		say(w, http.StatusOK, whole)
		return
	}
	text, err := json.Marshal(whole)
	if err != nil {
		panic(err) // cannot happen: texts and numbers always encode
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", text)
}

// say writes a JSON answer. It ignores errors, because they mean that the client has disconnected.
func say(w http.ResponseWriter, status int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		panic(errors.Join(err, errors.New("an answer does not encode")))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

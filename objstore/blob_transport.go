package objstore

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// blobHTTP is the connections of every container. There is no limit to the time of a
// body, which may be minutes of a month's bill; its context ends it.
var blobHTTP = sync.OnceValue(func() *http.Client {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	t.DialContext = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 10 * time.Second
	t.ResponseHeaderTimeout = 2 * time.Minute // the service itself gives up on a block list after one
	t.IdleConnTimeout = 90 * time.Second
	t.DisableCompression = true // bytes as they are stored: an export in gzip may say so in its headers
	return &http.Client{Transport: t}
})

// transport is what the SDK sends each try of a request with. A host that does not
// exist is not asked for again, and a body is not read any more once its try is over:
// net/http may go on after an early answer or a cancellation, while the SDK already
// reads the same body for the next try, or its owner has let go of it.
type transport struct{ *http.Client }

func (t transport) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		body := &tryBody{ReadCloser: r.Body}
		defer body.end()
		r.Body, r.GetBody = body, nil
	}
	resp, err := t.Client.Do(r)
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return nil, noHost{err}
	}
	return resp, err
}

type tryBody struct {
	io.ReadCloser
	mu   sync.Mutex
	over bool
}

func (b *tryBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return 0, errTryOver
	}
	return b.ReadCloser.Read(p)
}

func (b *tryBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

var errTryOver = errors.New("the request is over")

type noHost struct{ error }

func (noHost) NonRetriable()   {} // what the SDK looks for
func (e noHost) Unwrap() error { return e.error }

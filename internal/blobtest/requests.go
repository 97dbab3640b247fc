package blobtest

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// listing is the answer to List Blobs.
type listing struct {
	XMLName    xml.Name `xml:"EnumerationResults"`
	Container  string   `xml:"ContainerName,attr"`
	Prefix     string
	Blobs      []listed `xml:"Blobs>Blob"`
	NextMarker string
}

type listed struct {
	Name       listedName
	Properties struct {
		Modified string `xml:"Last-Modified"`
		ETag     string `xml:"Etag"` // without quotes, unlike the header
		Size     int    `xml:"Content-Length"`
		Type     string `xml:"ResourceType,omitempty"`
	}
	Metadata metadata `xml:",omitempty"`
}

// listedName is escaped where XML has no way to write it, as the service does.
type listedName struct {
	Encoded bool   `xml:",attr,omitempty"`
	Text    string `xml:",chardata"`
}

type metadata map[string]string

func (m metadata) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	if err := e.EncodeToken(start); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if err := e.EncodeElement(m[name], xml.StartElement{Name: xml.Name{Local: name}}); err != nil {
			return err
		}
	}
	return e.EncodeToken(start.End())
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, container string) {
	s.count["list"]++
	q := r.URL.Query()
	size := s.PageSize
	if n, err := strconv.Atoi(q.Get("maxresults")); err == nil && n < size {
		size = n
	}
	from, err := base64.RawURLEncoding.DecodeString(q.Get("marker"))
	if err != nil {
		Error(w, r, http.StatusBadRequest, "InvalidQueryParameterValue")
		return
	}
	out := listing{Container: container, Prefix: q.Get("prefix")}
	for _, name := range slices.Sorted(maps.Keys(s.blobs[container])) {
		if !strings.HasPrefix(name, out.Prefix) || name < string(from) {
			continue
		}
		if len(out.Blobs) == size {
			out.NextMarker = base64.RawURLEncoding.EncodeToString([]byte(name))
			break
		}
		b := s.blobs[container][name]
		one := listed{Name: listedName{Text: name}}
		if strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c >= 0xFFFE && c <= 0xFFFF }) {
			one.Name = listedName{true, url.PathEscape(name)}
		}
		one.Properties.Modified, one.Properties.ETag = b.Modified.Format(http.TimeFormat), strings.Trim(b.ETag, `"`)
		one.Properties.Size, one.Properties.Type = len(b.Content), b.Type
		if strings.Contains(q.Get("include"), "metadata") {
			one.Metadata = b.Metadata
		}
		out.Blobs = append(out.Blobs, one)
	}
	w.Header().Set("Content-Type", "application/xml")
	io.WriteString(w, "\ufeff"+xml.Header) //nolint:errcheck // a client that went away
	xml.NewEncoder(w).Encode(out)          //nolint:errcheck // likewise
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, container, name string) {
	s.count["get"]++
	b, ok := s.blobs[container][name]
	switch match := r.Header.Get("If-Match"); {
	case !ok:
		Error(w, r, http.StatusNotFound, "BlobNotFound")
		return
	case match != "" && match != b.ETag:
		Error(w, r, http.StatusPreconditionFailed, "ConditionNotMet")
		return
	}
	h := w.Header()
	h.Set("ETag", b.ETag)
	h.Set("x-ms-blob-type", "BlockBlob")
	h.Set("Content-Type", "application/octet-stream")
	if b.Encoding != "" {
		h.Set("Content-Encoding", b.Encoding)
	}
	if part := r.Header.Get("x-ms-range"); part != "" { // it goes before Range
		r.Header.Set("Range", part)
	}
	// ServeContent leaves the length of an encoded body out, for it might compress.
	if r.Header.Get("Range") == "" {
		h.Set("Content-Length", strconv.Itoa(len(b.Content)))
	}
	http.ServeContent(w, r, "", b.Modified, bytes.NewReader(b.Content))
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, container, name string) {
	s.count["put"]++
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("x-ms-blob-type") != "BlockBlob" || r.ContentLength != int64(len(body)) {
		Error(w, r, http.StatusBadRequest, "InvalidHeaderValue")
		return
	}
	b := s.add(container, name, Blob{Content: body, Encoding: r.Header.Get("x-ms-blob-content-encoding")})
	w.Header().Set("ETag", b.ETag)
	w.Header().Set("Last-Modified", b.Modified.Format(http.TimeFormat))
	w.WriteHeader(http.StatusCreated)
}

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"sort"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// s3Store is a bucket and a prefix. Retries of a request are the SDK's own; what
// is added is resuming a body that breaks off.
type s3Store struct {
	client *s3.Client
	bucket string
	prefix string // "" or ends in a slash
	only   string // the single object the store holds, "" for all below prefix
}

func openS3(ctx context.Context, rest string) (Store, error) {
	bucket, key, _ := strings.Cut(rest, "/")
	if strings.Contains(bucket, "@") {
		return nil, errors.New("objstore: an s3:// location must not hold credentials; use the AWS environment or configuration files")
	}
	if bucket == "" || strings.ContainsAny(rest, "?#") {
		return nil, fmt.Errorf("objstore: s3 location of bucket %q is not of the form s3://bucket/prefix", bucket)
	}
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("objstore: AWS configuration: %w", err)
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.DisableLogOutputChecksumValidationSkipped = true
		if o.BaseEndpoint == nil {
			return
		}
		// Stores other than S3 seldom resolve bucket.host, and know no regions.
		o.UsePathStyle = !strings.Contains(*o.BaseEndpoint, ".amazonaws.com")
		if o.Region == "" {
			o.Region = "us-east-1"
		}
	})
	if client.Options().Region == "" {
		return nil, fmt.Errorf("objstore: no AWS region for s3://%s; set AWS_REGION or the profile's region", bucket)
	}
	return newS3(client, bucket, key), nil
}

func newS3(client *s3.Client, bucket, key string) *s3Store {
	s := &s3Store{client: client, bucket: bucket}
	key = strings.Trim(key, "/")
	if isDataFile(key) {
		key, s.only = path.Split(key)
		key = strings.Trim(key, "/")
	}
	if key != "" {
		s.prefix = key + "/"
	}
	return s
}

func (s *s3Store) Location() string {
	return "s3://" + s.bucket + "/" + s.prefix + s.only
}

func (s *s3Store) url(key string) string { return "s3://" + s.bucket + "/" + s.prefix + key }

func (s *s3Store) List(ctx context.Context, prefix string) ([]Object, error) {
	full := s.prefix + prefix
	if s.only != "" {
		if !strings.HasPrefix(s.only, prefix) {
			return nil, nil
		}
		full = s.prefix + s.only
	}
	var out []Object
	pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{
		Bucket: aws.String(s.bucket), Prefix: aws.String(full),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, s.explain("list", prefix, err)
		}
		for _, o := range page.Contents {
			key := strings.TrimPrefix(aws.ToString(o.Key), s.prefix)
			if strings.HasSuffix(key, "/") || s.only != "" && key != s.only {
				continue // a folder's placeholder, or a longer name
			}
			out = append(out, Object{
				Key: key, Size: aws.ToInt64(o.Size), ETag: cleanTag(o.ETag), Modified: aws.ToTime(o.LastModified).UTC(),
			})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out, nil
}

func cleanTag(tag *string) string { return strings.Trim(aws.ToString(tag), `"`) }

func (s *s3Store) Get(ctx context.Context, key, etag string) (io.ReadCloser, Object, error) {
	if err := checkKey(key); err != nil {
		return nil, Object{}, err
	}
	out, err := s.getFrom(ctx, key, etag, 0)
	if err != nil {
		return nil, Object{}, err
	}
	obj := Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), ETag: cleanTag(out.ETag), Modified: aws.ToTime(out.LastModified).UTC(),
	}
	return &resumed{ctx: ctx, store: s, object: obj, body: out.Body}, obj, nil
}

func (s *s3Store) getFrom(ctx context.Context, key, etag string, offset int64) (*s3.GetObjectOutput, error) {
	in := &s3.GetObjectInput{Bucket: aws.String(s.bucket), Key: aws.String(s.prefix + key)}
	if etag != "" {
		in.IfMatch = aws.String(`"` + etag + `"`)
	}
	var part []func(*s3.Options)
	if offset > 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", offset))
		// Some servers answer a part with the checksum of the whole.
		part = append(part, func(o *s3.Options) { o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired })
	}
	out, err := s.client.GetObject(ctx, in, part...)
	if err != nil {
		return nil, s.explain("get", key, err)
	}
	// Some servers ignore If-Match, so the answer's own tag is compared too.
	if got := cleanTag(out.ETag); etag != "" && got != "" && got != etag {
		out.Body.Close()
		return nil, fmt.Errorf("objstore: %s: %w", s.url(key), ErrChanged)
	}
	return out, nil
}

// resumed continues a body that broke off, from where it broke and pinned to the
// same version. The SDK retries requests but not bodies, and a month of bills is
// minutes of one body.
type resumed struct {
	ctx    context.Context
	store  *s3Store
	object Object
	body   io.ReadCloser
	offset int64
	breaks int
}

const maxBreaks = 5

func (r *resumed) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.offset += int64(n)
		switch {
		case err == nil:
			r.breaks = 0
			return n, nil
		case err == io.EOF && r.offset >= r.object.Size:
			return n, io.EOF
		case r.offset >= r.object.Size:
			return n, fmt.Errorf("objstore: %s: damaged on the way: %w: %w", r.store.url(r.object.Key), err, ErrChanged)
		case r.ctx.Err() != nil:
			return n, r.ctx.Err()
		}
		if r.breaks++; r.breaks > maxBreaks {
			return n, fmt.Errorf("objstore: %s broke off at byte %d of %d, %d times in a row: %w",
				r.store.url(r.object.Key), r.offset, r.object.Size, maxBreaks, ErrChanged)
		}
		r.body.Close()
		out, openErr := r.store.getFrom(r.ctx, r.object.Key, r.object.ETag, r.offset)
		if openErr != nil {
			return n, openErr
		}
		r.body = out.Body
		if n > 0 {
			return n, nil
		}
	}
}

func (r *resumed) Close() error { return r.body.Close() }

func (s *s3Store) Fetch(ctx context.Context, key, etag string) (File, error) {
	body, obj, err := s.Get(ctx, key, etag)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	tmp, err := spool(body)
	if err != nil {
		return nil, fmt.Errorf("objstore: fetch %s: %w", s.url(key), err)
	}
	return &tempFile{File: tmp, object: obj}, nil
}

// spool copies a stream to an unnamed-as-possible temporary file, rewound.
func spool(r io.Reader) (*os.File, error) {
	tmp, err := os.CreateTemp("", "gpuledger-*")
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(tmp, r); err == nil {
		_, err = tmp.Seek(0, io.SeekStart)
	}
	if err != nil {
		tmp.Close()
		os.Remove(tmp.Name())
		return nil, err
	}
	return tmp, nil
}

type tempFile struct {
	*os.File
	object Object
}

func (f *tempFile) Object() Object { return f.object }

func (f *tempFile) Close() error {
	return errors.Join(f.File.Close(), os.Remove(f.Name()))
}

func (s *s3Store) Put(ctx context.Context, key string, body io.Reader) error {
	if err := checkKey(key); err != nil {
		return err
	}
	seeker, ok := body.(io.ReadSeeker)
	if !ok {
		tmp, err := spool(ctxReader{ctx, body})
		if err != nil {
			return fmt.Errorf("objstore: write %s: %w", s.url(key), err)
		}
		defer os.Remove(tmp.Name())
		defer tmp.Close()
		seeker = tmp
	}
	_, err := s.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: aws.String(s.bucket), Key: aws.String(s.prefix + key), Body: seeker,
	})
	if err != nil {
		return s.explain("put", key, err)
	}
	return nil
}

// explain turns a service error into what, where and what to do. The SDK's text
// holds request ids and codes, never keys.
func (s *s3Store) explain(verb, key string, err error) error {
	where := s.url(key)
	var resp *awshttp.ResponseError
	var api smithy.APIError
	status, code := 0, ""
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	switch {
	case code == "NoSuchBucket":
		return fmt.Errorf("objstore: %s %s: there is no bucket %q: %w", verb, where, s.bucket, ErrNotFound)
	case code == "NoSuchKey" || code == "NotFound" || status == http.StatusNotFound:
		return fmt.Errorf("objstore: %s %s: %w", verb, where, ErrNotFound)
	case status == http.StatusPreconditionFailed:
		return fmt.Errorf("objstore: %s %s: %w", verb, where, ErrChanged)
	case status == http.StatusForbidden:
		return fmt.Errorf("objstore: %s %s: access denied (%s); the credentials need s3:ListBucket and s3:GetObject (s3:PutObject to write) there: %w", verb, where, code, err)
	case status == http.StatusMovedPermanently || code == "AuthorizationHeaderMalformed":
		return fmt.Errorf("objstore: %s %s: the bucket is in another region; set AWS_REGION to it: %w", verb, where, err)
	}
	return fmt.Errorf("objstore: %s %s: %w", verb, where, err)
}

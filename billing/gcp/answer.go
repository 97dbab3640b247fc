package gcp

import (
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigquery"
	"cloud.google.com/go/civil"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"

	"gpuledger/billing"
)

// answer is a query's answer as rows of texts.
type answer struct {
	it    *bigquery.RowIterator
	row   []bigquery.Value
	cells []string
	opt   Options
}

// Next implements table.Rows.
func (a *answer) Next() ([]string, error) {
	a.row = a.row[:0]
	err := a.it.Next(&a.row)
	if errors.Is(err, iterator.Done) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, explain(err, a.opt)
	}
	for i, v := range a.row {
		if i < len(a.cells) {
			a.cells[i] = cell(v)
		}
	}
	return a.cells[:len(a.row)], nil
}

// Close implements table.Rows: pages are read as they are needed, and none is open.
func (a *answer) Close() error { return nil }

// cell is a value as text: a double by its shortest, NUMERIC exactly, "" for NULL.
func cell(v bigquery.Value) string {
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		return x
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	case int64:
		return strconv.FormatInt(x, 10)
	case bool:
		return strconv.FormatBool(x)
	case time.Time:
		return x.UTC().Format(time.RFC3339Nano)
	case civil.Date:
		return x.String()
	case *big.Rat:
		s := x.FloatString(bigquery.BigNumericScaleDigits)
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	return fmt.Sprint(v)
}

// explain says what to do about an error of Google's.
func explain(err error, opt Options) error {
	var api *googleapi.Error
	if !errors.As(err, &api) {
		text := err.Error()
		switch {
		case strings.Contains(text, "could not find default credentials"):
			return fmt.Errorf("no credentials for Google Cloud: give the job a service account (Workload Identity), or run gcloud auth application-default login (%w)", err)
		case strings.Contains(text, "invalid_grant"), strings.Contains(text, "token expired"):
			return fmt.Errorf("the credentials for Google Cloud have expired: make new ones (%w)", err)
		}
		return err
	}
	reason := ""
	if len(api.Errors) > 0 {
		reason = api.Errors[0].Reason
	}
	said := fmt.Errorf("BigQuery: %s (%d %s)", api.Message, api.Code, reason)
	switch {
	case api.Code == http.StatusNotFound:
		return fmt.Errorf("%s: %w; check the name of the table, and that its dataset is where the query runs", opt.Table, said)
	case api.Code == http.StatusUnauthorized:
		return fmt.Errorf("%s: %w; the credentials for Google Cloud have expired or are none: make new ones", opt.Table, said)
	case reason == "bytesBilledLimitExceeded":
		return fmt.Errorf("%s: %w; max_bytes allows %d: allow more, or begin with a later month (from)", opt.Table, said, opt.MaxBytes)
	case api.Code == http.StatusForbidden && (reason == "rateLimitExceeded" || reason == "quotaExceeded"), api.Code == http.StatusTooManyRequests, api.Code >= 500:
		return fmt.Errorf("%s: %w: %w; try again later", opt.Table, billing.ErrIncomplete, said)
	case api.Code == http.StatusForbidden:
		return fmt.Errorf("%s: %w; the account needs BigQuery Data Viewer on the dataset and BigQuery Job User on project %s", opt.Table, said, opt.Project)
	}
	return fmt.Errorf("%s: %w", opt.Table, said)
}
